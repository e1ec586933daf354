package e2e_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/suite/e2e"
	"github.com/pillarbox/pillarbox/shared/events"
)

// TestPoisonBecomesDeadLetters puts what no consumer can read onto the topic
// with a plain client, orders in between. Nothing stops, every poison message is
// kept once by every consumer, and every order gets through.
func TestPoisonBecomesDeadLetters(t *testing.T) {
	good := `{"specversion":"1.0","id":"poison-1","source":"/elsewhere","type":"order.placed.v1","time":"2026-11-30T11:00:00Z",` +
		`"subject":"order-1","orderversion":1,"data":{"id":"order-1","version":1,"status":"placed","customer":{"email":"a@example.com"},` +
		`"currency":"EUR","items":[],"total":"1.00","placed_at":"2026-11-30T11:00:00Z"}}`
	replace := func(old, new string) []byte { return bytes.Replace([]byte(good), []byte(old), []byte(new), 1) }
	poison := map[string]*nats.Msg{
		"not JSON":        {Data: []byte("hello")},
		"empty":           {},
		"unknown type":    {Data: replace("order.placed.v1", "order.eaten.v1")},
		"unknown version": {Data: replace("order.placed.v1", "order.placed.v7")},
		"no id":           {Data: replace(`"id":"poison-1",`, "")},
		"noise":           {Data: bytes.Repeat([]byte{0xfe, 0x00, 0x41}, 300_000)},
		"two values":      {Data: []byte(good), Header: nats.Header{"Event-Id": {"one", "two"}}},
	}
	eachShape(t, func(t *testing.T, line e2e.Line) {
		b := begin(t, line)
		conn, err := nats.Connect(line.Publisher, nats.Token(line.Token))
		require.NoError(t, err)
		defer conn.Close()
		js, err := jetstream.New(conn)
		require.NoError(t, err)
		for name, message := range poison {
			_, err := b.client.Place(b.ctx, e2e.Body("ada@example.com", "EUR", 1, "1.00"))
			require.NoError(t, err)
			message := &nats.Msg{Subject: events.TopicOrders, Data: message.Data, Header: message.Header}
			_, err = js.PublishMsg(b.ctx, message)
			require.NoError(t, err, name)
		}
		_, err = b.client.Place(b.ctx, e2e.Body("ada@example.com", "EUR", 1, "1.00"))
		require.NoError(t, err)
		b.conserved(t)
		for _, service := range []string{"mailer", "audit", "loyalty"} {
			require.Eventually(t, func() bool {
				dead, err := line.Metric(b.ctx, "pillarbox_"+service+"_consumer_events_total", `result="dead"`)
				return err == nil && dead == float64(len(poison))
			}, deadline, 20*time.Millisecond, service)
		}
	})
}
