package loyaltysvc_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/pillarbox/pillarbox/services/loyalty/loyaltysvc"
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

// bundle is a broker with a loyalty service that is not started yet.
type bundle struct {
	db   *database.DB
	conn *broker.Conn
}

func setup(t *testing.T, db *database.DB) *bundle {
	t.Helper()
	return &bundle{db, brokertest.Connect(t, brokertest.Server(t))}
}

// start runs a replica until the returned stop, which also checks that it ended well.
func (b *bundle) start(t *testing.T, c loyaltysvc.Config) (s *loyaltysvc.Service, stop func()) {
	t.Helper()
	s, err := loyaltysvc.New(c, loyaltysvc.Deps{DB: b.db, Broker: b.conn, Log: logs.Discard()})
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

func event(t *testing.T, kind, order string, version int64, email, total string) []byte {
	t.Helper()
	// Placed after the consumer's first start, so that it waits for version 1.
	now := time.Now().UTC().Add(time.Hour)
	data, err := json.Marshal(events.Order{ID: order, Version: version, Status: "placed", Currency: "EUR", Total: total,
		Customer: events.Customer{Email: email}, PlacedAt: now})
	require.NoError(t, err)
	raw, err := events.Event{ID: fmt.Sprintf("%s-%d", order, version), Source: events.Source, Type: kind,
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

func (b *bundle) count(t *testing.T, query string) (n int) {
	t.Helper()
	require.NoError(t, b.db.Read().QueryRowContext(t.Context(), query).Scan(&n))
	return n
}

// waitForEvents waits until so many events took effect.
func (b *bundle) waitForEvents(t *testing.T, n int) {
	t.Helper()
	require.Eventually(t, func() bool { return b.count(t, "SELECT COUNT(*) FROM ledger") == n },
		patience, 5*time.Millisecond, "want %d ledger rows", n)
}

func points(t *testing.T, s *loyaltysvc.Service, account string) (n int64) {
	t.Helper()
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/loyalty/accounts/"+account, nil))
	require.Equal(t, http.StatusOK, w.Code, w.Body)
	var got struct{ Points int64 }
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &got))
	return got.Points
}

// life is a random life of some orders of few customers, and what the customers hold at its end.
func life(t *testing.T, random *rand.Rand, orders, versions int) (bodies [][]byte, want map[string]int64) {
	t.Helper()
	want = map[string]int64{}
	for o := range orders {
		order, account, worth := fmt.Sprintf("o%d", o), fmt.Sprintf("a%d@example.com", o%3), int64(0)
		for v := range versions {
			kind := events.TypeChanged
			worth = random.Int64N(1000)
			total := fmt.Sprintf("%d.%02d", worth, random.IntN(100))
			switch {
			case v == 0:
				kind = events.TypePlaced
			case v == versions-1 && o%4 == 0:
				kind, worth = events.TypeCancelled, 0
			}
			bodies = append(bodies, event(t, kind, order, int64(v+1), account, total))
		}
		want[account] += worth
	}
	return bodies, want
}

// Events come in any order and some of them twice, to several workers of two replicas: each
// order is posted version by version, and the accounts, which many orders share, are right.
func TestShuffledAndRepeatedEventsGiveTheSameBalances(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		seed := uint64(time.Now().UnixNano())
		t.Logf("seed %d", seed)
		random := rand.New(rand.NewPCG(seed, 0))
		b := setup(t, db)
		c := loyaltysvc.Config{Settings: consumer.Settings{Batch: 7, Workers: 3}}
		s, stop := b.start(t, c)
		_, stopOther := b.start(t, c)

		const orders, versions = 24, 8
		bodies, want := life(t, random, orders, versions)
		all := append(append([][]byte{}, bodies...), bodies[:len(bodies)/4]...)
		random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		b.publish(t, all...)
		b.waitForEvents(t, orders*versions)
		stop()
		stopOther()

		for account, n := range want {
			require.Equal(t, n, points(t, s, account), account)
		}
		require.Equal(t, orders*versions, b.count(t, "SELECT COUNT(DISTINCT event_id) FROM ledger"))
		require.Zero(t, b.count(t, `SELECT COUNT(*) FROM ledger a JOIN ledger b
			ON a.order_id = b.order_id AND a.order_version < b.order_version AND a.position > b.position`), "posted out of order")
		require.Zero(t, b.count(t, "SELECT COUNT(*) FROM parked")+b.count(t, "SELECT COUNT(*) FROM dead_letters"))
	})
}

func TestEventsThatCameWhileItWasDownAreCredited(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		s, stop := b.start(t, loyaltysvc.Config{})
		b.publish(t, event(t, events.TypePlaced, "o1", 1, "Ada@EXAMPLE.com", "9.99"))
		b.waitForEvents(t, 1)
		require.Eventually(t, func() bool { return s.Ready(t.Context()) == nil }, patience, 5*time.Millisecond)
		stop()
		b.publish(t, event(t, events.TypeChanged, "o1", 2, "Ada@EXAMPLE.com", "5.00"))
		require.EqualValues(t, 9, points(t, s, "Ada@example.com"))
		s, _ = b.start(t, loyaltysvc.Config{})
		b.waitForEvents(t, 2)
		require.EqualValues(t, 5, points(t, s, "Ada@example.com"))
	})
}

func TestImpossibleEventBecomesADeadLetterAndOtherOrdersGoOn(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		s, _ := b.start(t, loyaltysvc.Config{})
		b.publish(t,
			event(t, events.TypePlaced, "o1", 1, "ada@example.com", "ten"),
			event(t, events.TypePlaced, "o2", 1, "nowhere", "1.00"),
			[]byte("{"),
			event(t, events.TypePlaced, "o3", 1, "ada@example.com", "3.00"))
		b.waitForEvents(t, 1)
		require.EqualValues(t, 3, points(t, s, "ada@example.com"))
		require.Eventually(t, func() bool { return b.count(t, "SELECT COUNT(*) FROM dead_letters") == 3 }, patience, 5*time.Millisecond)
	})
}

func TestAMailRequestIsWorthNothing(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		s, _ := b.start(t, loyaltysvc.Config{})
		e, err := events.NewMailRequested("mail-1", "/shop/news", time.Now(), events.MailRequest{
			Sender: events.Mailbox{Email: "news@example.com"}, Recipients: []events.Mailbox{{Email: "ada@example.com"}}, Subject: "Hello", Text: "Hello",
		})
		require.NoError(t, err)
		raw, err := e.Encode()
		require.NoError(t, err)
		b.publish(t, raw, event(t, events.TypePlaced, "o1", 1, "ada@example.com", "3.00"), raw, event(t, events.TypeChanged, "o1", 2, "ada@example.com", "4.00"))
		b.waitForEvents(t, 2)
		require.EqualValues(t, 4, points(t, s, "ada@example.com"))
		require.Eventually(t, func() bool { // the mail request is settled, too
			return b.count(t, "SELECT COUNT(*) FROM lanes WHERE order_id = 'mail-1' AND version = 1") == 1
		}, patience, 5*time.Millisecond)
		require.Zero(t, b.count(t, "SELECT COUNT(*) FROM dead_letters"))
		require.Zero(t, b.count(t, "SELECT COUNT(*) FROM parked"))
	})
}

// The store may be down when the service starts: events are handled meanwhile, and the
// durable is registered once the store answers.
func TestDurableIsRegisteredWhenTheStoreComesUp(t *testing.T) {
	t.Parallel()
	db, _ := databasetest.SQLite(t, "loyalty")
	b := setup(t, db)
	b.start(t, loyaltysvc.Config{})
	b.publish(t, event(t, events.TypePlaced, "o1", 1, "ada@example.com", "9.00"))
	b.waitForEvents(t, 1)
	requests, err := b.conn.NATS.SubscribeSync("pillarbox.register.orders")
	require.NoError(t, err)
	for _, answer := range []string{`{"retry":true,"error":"not now"}`, `{"ok":true}`} {
		request, err := requests.NextMsg(patience)
		require.NoError(t, err)
		require.JSONEq(t, `{"name":"loyalty","durable":"loyalty-0"}`, string(request.Data))
		require.NoError(t, request.Respond([]byte(answer)))
	}
	require.NoError(t, requests.Unsubscribe())
}

func TestNewWantsItsParts(t *testing.T) {
	t.Parallel()
	db, _ := databasetest.SQLite(t, "loyalty")
	for _, d := range []loyaltysvc.Deps{{}, {DB: db}, {DB: db, Broker: &broker.Conn{}}} {
		_, err := loyaltysvc.New(loyaltysvc.Config{}, d)
		require.ErrorContains(t, err, "required")
	}
	_, err := loyaltysvc.New(loyaltysvc.Config{Settings: consumer.Settings{Batch: -1}}, loyaltysvc.Deps{})
	require.ErrorContains(t, err, "PILLARBOX_LOYALTY_BATCH")
}

func TestNotReadyWithoutItsDatabase(t *testing.T) {
	t.Parallel()
	// Nothing listens there.
	db, err := database.Open("postgres://nobody@127.0.0.1:1/none?sslmode=disable", database.Options{Schema: "loyalty"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	s, err := loyaltysvc.New(loyaltysvc.Config{}, loyaltysvc.Deps{DB: db, Broker: &broker.Conn{}, Log: logs.Discard()})
	require.NoError(t, err)
	require.ErrorContains(t, s.Ready(t.Context()), "database")
}

// TestAtLeastOncePoints: the ledger passes over what it knows and what is older than that, so an event that comes again
// counts once; an older version that comes later leaves no row, and the balance is that of the newest.
func TestAtLeastOncePoints(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		s, _ := b.start(t, loyaltysvc.Config{Settings: consumer.Settings{Delivery: consumer.AtLeastOnce}})
		newest := event(t, events.TypeChanged, "o", 2, "ada@example.com", "13.50")
		b.publish(t, newest)
		b.waitForEvents(t, 1)
		b.publish(t, event(t, events.TypePlaced, "o", 1, "ada@example.com", "9.00"), newest)
		b.publish(t, event(t, events.TypePlaced, "last", 1, "bob@example.com", "1.00"))
		b.waitForEvents(t, 2)
		require.EqualValues(t, 13, points(t, s, "ada@example.com"))
		require.Zero(t, b.count(t, "SELECT COUNT(*) FROM dead_letters")+b.count(t, "SELECT COUNT(*) FROM parked"))
	})
}
