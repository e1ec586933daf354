package auditsvc_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/pillarbox/pillarbox/services/audit/auditsvc"
	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/broker/brokertest"
	"github.com/pillarbox/pillarbox/shared/consumer"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
	"github.com/pillarbox/pillarbox/shared/events"
	"github.com/pillarbox/pillarbox/shared/logs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = time.Minute

// bundle is a broker with an audit service that is not started yet.
type bundle struct {
	db   *database.DB
	conn *broker.Conn
}

func setup(t *testing.T, db *database.DB) *bundle {
	t.Helper()
	return &bundle{db, brokertest.Connect(t, brokertest.Server(t))}
}

// start runs a replica until the returned stop, which also checks that it ended well.
func (b *bundle) start(t *testing.T) (s *auditsvc.Service, stop func()) {
	t.Helper()
	s, err := auditsvc.New(auditsvc.Config{Settings: consumer.Settings{Batch: 20}}, auditsvc.Deps{DB: b.db, Broker: b.conn, Log: logs.Discard()})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	stop = func() {
		if cancel != nil {
			cancel()
			cancel = nil
			require.NoError(t, <-ended)
		}
	}
	t.Cleanup(stop)
	return s, stop
}

func event(t *testing.T, order string, version int64) []byte {
	t.Helper()
	now := time.Now().UTC()
	data, err := json.Marshal(events.Order{ID: order, Version: version, Status: "placed", Currency: "EUR", Total: "9.00",
		Customer: events.Customer{Email: "ada@example.com"}, PlacedAt: now})
	require.NoError(t, err)
	raw, err := events.Event{ID: fmt.Sprintf("%s-%d", order, version), Source: events.Source, Type: events.TypePlaced,
		Time: now, Subject: order, Version: version, Data: data}.Encode()
	require.NoError(t, err)
	return raw
}

// publish sends each body as a message of its own, also one that was sent before.
func (b *bundle) publish(t *testing.T, bodies ...[]byte) {
	t.Helper()
	p := broker.NewPublisher(b.conn, broker.PublisherConfig{AutoCreate: true})
	for _, body := range bodies {
		require.NoError(t, p.Publish(events.TopicOrders, message.NewMessage(uuid.NewString(), body)))
	}
	require.NoError(t, p.Close())
}

type listing struct {
	Entries []struct {
		EventID      string          `json:"event_id"`
		OrderVersion int64           `json:"order_version"`
		Event        json.RawMessage `json:"event"`
	} `json:"entries"`
	Next *string `json:"next"`
}

func list(t *testing.T, s *auditsvc.Service, query string) listing {
	t.Helper()
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/audit/entries"+query, nil))
	require.Equal(t, http.StatusOK, w.Code, w.Body)
	var l listing
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &l))
	return l
}

func (b *bundle) count(t *testing.T, table string) (n int) {
	t.Helper()
	require.NoError(t, b.db.Read().QueryRowContext(t.Context(), "SELECT COUNT(*) FROM "+table).Scan(&n))
	return n
}

// waitFor waits until everything published is recorded or a dead letter.
func (b *bundle) waitFor(t *testing.T, entries, letters int) {
	t.Helper()
	require.Eventually(t, func() bool { return b.count(t, "entries") == entries && b.count(t, "dead_letters") == letters },
		patience, 5*time.Millisecond, "want %d entries and %d dead letters", entries, letters)
}

func TestReplicasRecordEachEventOnce(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "audit", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		s, stop := b.start(t)
		_, stopOther := b.start(t)
		var bodies [][]byte
		for o := range 30 {
			for v := range 5 {
				bodies = append(bodies, event(t, fmt.Sprintf("o%d", o), int64(v+1)))
			}
		}
		b.publish(t, append(slices.Clone(bodies), bodies[:40]...)...) // some come twice
		b.waitFor(t, len(bodies), 0)
		require.Eventually(t, func() bool { return s.Ready(t.Context()) == nil }, patience, 5*time.Millisecond)

		l := list(t, s, "?order=o7")
		require.Nil(t, l.Next)
		require.Len(t, l.Entries, 5)
		var versions []int64
		for _, e := range l.Entries {
			require.Contains(t, bodies, []byte(e.Event), "byte for byte")
			versions = append(versions, e.OrderVersion)
		}
		slices.Sort(versions)
		require.Equal(t, []int64{1, 2, 3, 4, 5}, versions)
		stop()
		stopOther()
		require.Equal(t, len(bodies), b.count(t, "entries"), "the repeats left nothing")
	})
}

func TestEventsThatCameWhileItWasDownAreRecorded(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "audit", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		_, stop := b.start(t)
		b.publish(t, event(t, "o1", 1))
		b.waitFor(t, 1, 0)
		stop()
		b.publish(t, event(t, "o1", 2), event(t, "o2", 1))
		require.Equal(t, 1, b.count(t, "entries"))
		b.start(t)
		b.waitFor(t, 3, 0)
	})
}

func TestUnreadableMessageBecomesADeadLetterAndTheNextIsRecorded(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "audit", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		b.start(t)
		b.publish(t, []byte("{"), []byte(`{"specversion":"1.0","id":"x"}`), event(t, "o1", 1))
		b.waitFor(t, 1, 2)
	})
}

func TestAMailRequestIsRecordedUnderItsOwnId(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "audit", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		s, _ := b.start(t)
		e, err := events.NewMailRequested("mail-1", "/shop/news", time.Now(), events.MailRequest{
			Sender: events.Mailbox{Email: "news@example.com"}, Recipients: []events.Mailbox{{Email: "ada@example.com"}}, Subject: "Hello", Text: "Hello",
		})
		require.NoError(t, err)
		raw, err := e.Encode()
		require.NoError(t, err)
		b.publish(t, raw, raw, event(t, "o1", 1))
		b.waitFor(t, 2, 0)
		found := list(t, s, "?order=mail-1")
		require.Len(t, found.Entries, 1)
		require.JSONEq(t, string(raw), string(found.Entries[0].Event))
	})
}

// The store may be down when the service starts: events are handled meanwhile, and the
// durable is registered once the store answers.
func TestDurableIsRegisteredWhenTheStoreComesUp(t *testing.T) {
	t.Parallel()
	db, _ := databasetest.SQLite(t, "audit")
	b := setup(t, db)
	b.start(t)
	b.publish(t, event(t, "o1", 1))
	b.waitFor(t, 1, 0)
	requests, err := b.conn.NATS.SubscribeSync("pillarbox.register.orders")
	require.NoError(t, err)
	for _, answer := range []string{`{"retry":true,"error":"not now"}`, `{"ok":true}`} {
		request, err := requests.NextMsg(patience)
		require.NoError(t, err)
		require.JSONEq(t, `{"name":"audit","durable":"audit-0"}`, string(request.Data))
		require.NoError(t, request.Respond([]byte(answer)))
	}
	require.NoError(t, requests.Unsubscribe())
}

func TestNewWantsItsParts(t *testing.T) {
	t.Parallel()
	db, _ := databasetest.SQLite(t, "audit")
	for _, d := range []auditsvc.Deps{{}, {DB: db}, {DB: db, Broker: &broker.Conn{}}} {
		_, err := auditsvc.New(auditsvc.Config{}, d)
		require.ErrorContains(t, err, "required")
	}
	_, err := auditsvc.New(auditsvc.Config{Settings: consumer.Settings{Batch: -1}}, auditsvc.Deps{})
	require.ErrorContains(t, err, "PILLARBOX_AUDIT_BATCH")
}

func TestNotReadyWithoutItsDatabase(t *testing.T) {
	t.Parallel()
	// Nothing listens there.
	db, err := database.Open("postgres://nobody@127.0.0.1:1/none?sslmode=disable", database.Options{Schema: "audit"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	s, err := auditsvc.New(auditsvc.Config{}, auditsvc.Deps{DB: db, Broker: &broker.Conn{}, Log: logs.Discard()})
	require.NoError(t, err)
	require.ErrorContains(t, s.Ready(t.Context()), "database")
}
