package e2e_test

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/url"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/suite/e2e"
	"github.com/pillarbox/pillarbox/shared/consumer"
	"github.com/pillarbox/pillarbox/shared/events"
	"github.com/pillarbox/pillarbox/shared/operate"
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
		"truncated":       {Data: []byte(good)[:len(good)/2]},
		"one byte short":  {Data: []byte(good)[:len(good)-1]},
		"bad UTF-8":       {Data: replace("a@example.com", "a\xff@example.com")},
		"zero bytes":      {Data: make([]byte, 64)},
		"not an object":   {Data: []byte(`[` + good + `]`)},
		"two objects":     {Data: []byte(good + good)},
		"wrong types":     {Data: replace(`"orderversion":1`, `"orderversion":"one"`)},
		"order a number":  {Data: replace(`"subject":"order-1"`, `"subject":1`)},
		"data a text":     {Data: replace(`"data":{`, `"data":"x","rest":{`)},
		"version 0":       {Data: replace(`"orderversion":1`, `"orderversion":0`)},
		"version below 0": {Data: replace(`"orderversion":1`, `"orderversion":-7`)},
		"version too big": {Data: replace(`"orderversion":1`, `"orderversion":99999999999999999999`)},
		"other spec":      {Data: replace(`"specversion":"1.0"`, `"specversion":"7.0"`)},
		"no time":         {Data: replace(`"time":"2026-11-30T11:00:00Z",`, `"time":"yesterday",`)},
		"deep":            {Data: bytes.Repeat([]byte(`{"a":[`), 20_000)},
		"near the limit":  {Data: bytes.Repeat([]byte("7"), 1<<20-200)},
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
		const corrupt = 3
		publishCorruptHeaders(t, line)
		_, err = b.client.Place(b.ctx, e2e.Body("ada@example.com", "EUR", 1, "1.00"))
		require.NoError(t, err)
		b.conserved(t)
		for _, service := range []string{"mailer", "audit", "loyalty"} {
			require.Eventually(t, func() bool {
				dead, err := line.Metric(b.ctx, "pillarbox_"+service+"_consumer_events_total", `result="dead"`)
				return err == nil && dead == float64(len(poison)+corrupt)
			}, deadline, 20*time.Millisecond, service)
			kept := bodiesOf(t, line, service)
			for name, message := range poison {
				require.True(t, slices.Contains(kept, string(message.Data)), "%s: the bytes of %q are not kept", service, name)
			}
		}
	})
}

// publishCorruptHeaders publishes three messages whose headers no client would write.
func publishCorruptHeaders(t *testing.T, line e2e.Line) {
	t.Helper()
	server, err := url.Parse(line.Publisher)
	require.NoError(t, err)
	conn, err := net.Dial("tcp", server.Host)
	require.NoError(t, err)
	defer conn.Close()
	password, _ := server.User.Password()
	hello, err := json.Marshal(map[string]any{"user": server.User.Username(), "pass": password, "auth_token": line.Token, "headers": true, "verbose": false})
	require.NoError(t, err)
	_, err = fmt.Fprintf(conn, "CONNECT %s\r\n", hello)
	require.NoError(t, err)
	for _, header := range []string{"NATS/1.0\r\nno colon\r\n\r\n", "NATS/1.0\r\n\x00\xff: \xff\r\n\r\n", "NATS/9.9\r\n\r\n"} {
		const body = "corrupt header"
		_, err = fmt.Fprintf(conn, "HPUB %s %d %d\r\n%s%s\r\n", events.TopicOrders, len(header), len(header)+len(body), header, body)
		require.NoError(t, err)
	}
	_, err = io.WriteString(conn, "PING\r\n")
	require.NoError(t, err)
	// The server takes what comes before the PING first.
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		require.NotContains(t, lines.Text(), "-ERR")
		if lines.Text() == "PONG" {
			return
		}
	}
	require.Fail(t, "the broker has closed the connection")
}

// bodiesOf are the bodies of a service's dead letters, as an operator gets them.
func bodiesOf(t *testing.T, line e2e.Line, service string) (bodies []string) {
	t.Helper()
	clients, err := operate.Dial(t.Context(), line.Admins, "e2e")
	require.NoError(t, err)
	for _, c := range clients {
		if c.Service != service {
			continue
		}
		page, err := c.Letters(t.Context(), consumer.LetterFilter{}, "", 0)
		require.NoError(t, err)
		for _, letter := range page.Items {
			whole, err := c.Letter(t.Context(), letter.ID)
			require.NoError(t, err)
			body, err := base64.StdEncoding.DecodeString(whole.BodyBase64)
			require.NoError(t, err)
			if whole.Body != nil {
				body = []byte(*whole.Body)
			}
			bodies = append(bodies, string(body))
		}
	}
	return bodies
}
