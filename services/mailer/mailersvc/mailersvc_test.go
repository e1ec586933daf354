package mailersvc_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/mail"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/pillarbox/pillarbox/services/mailer/internal/lettertest"
	"github.com/pillarbox/pillarbox/services/mailer/internal/pickup"
	"github.com/pillarbox/pillarbox/services/mailer/mailersvc"
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

// bundle is a database, a broker and a pickup folder, with no mailer started yet.
type bundle struct {
	db   *database.DB
	conn *broker.Conn
	dir  string
}

func setup(t *testing.T, db *database.DB) *bundle {
	t.Helper()
	conn := brokertest.Connect(t, brokertest.Server(t))
	_, err := conn.EnsureStream(t.Context(), broker.StreamConfig{Name: events.StreamOrders, MaxBytes: 64 << 20}) // as the store does
	require.NoError(t, err)
	return &bundle{db, conn, filepath.Join(t.TempDir(), "pickup")}
}

// start runs a replica until the returned stop, which also checks that it ended well.
func (b *bundle) start(t *testing.T) (s *mailersvc.Service, stop func()) {
	t.Helper()
	return b.startAs(t, mailersvc.Config{Batch: 20, Transactions: 3, Sweep: 200 * time.Millisecond})
}

func (b *bundle) startAs(t *testing.T, config mailersvc.Config) (s *mailersvc.Service, stop func()) {
	t.Helper()
	config.Pickup = b.dir
	s, err := mailersvc.New(config, mailersvc.Deps{DB: b.db, Broker: b.conn, Log: logs.Discard()})
	require.NoError(t, err)
	require.Nil(t, s.Handler())
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

func (b *bundle) ready(t *testing.T, s *mailersvc.Service) {
	t.Helper()
	require.Eventually(t, func() bool { return s.Ready(t.Context()) == nil }, patience, 5*time.Millisecond)
}

// event is version n of an order; change may spoil it.
func event(t *testing.T, order string, version int64, change func(*events.Order)) []byte {
	t.Helper()
	kind := events.TypeChanged
	if version == 1 {
		kind = events.TypePlaced
	}
	o := events.Order{ID: order, Version: version, Status: "placed", Currency: "EUR", Total: "9.00", Reference: "ref-" + order,
		Customer: events.Customer{Email: "ada@example.com", Name: "Ada"}, PlacedAt: time.Now().UTC(),
		Items: []events.Item{{SKU: "TEA-01", Name: "Green tea", Quantity: 2, UnitPrice: "4.50"}}}
	if change != nil {
		change(&o)
	}
	data, err := json.Marshal(o)
	require.NoError(t, err)
	raw, err := events.Event{ID: fmt.Sprintf("%s-%d", order, version), Source: events.Source, Type: kind,
		Time: o.PlacedAt, Subject: order, Version: version, Data: data}.Encode()
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
	require.NoError(t, b.db.Read().QueryRowContext(t.Context(), "SELECT COUNT(*) FROM "+query).Scan(&n))
	return n
}

func (b *bundle) files(t *testing.T) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(b.dir, "*.eml"))
	require.NoError(t, err)
	return paths
}

func (b *bundle) waitFor(t *testing.T, mails int) {
	t.Helper()
	require.Eventually(t, func() bool { return len(b.files(t)) >= mails }, patience, 5*time.Millisecond, "want %d mails", mails)
	require.Len(t, b.files(t), mails)
}

// settled waits until every message is acknowledged and every row marked, so that nothing can come after.
func (b *bundle) settled(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool {
		info, err := b.conn.JS.Consumer(t.Context(), events.StreamOrders, "mailer-0")
		if err != nil {
			return false
		}
		state := info.CachedInfo()
		return state.NumPending == 0 && state.NumAckPending == 0 && b.count(t, "deliveries WHERE state = 'staged'") == 0
	}, patience, 10*time.Millisecond)
	require.Eventually(t, func() bool { // the consumer's own sweep may be about to discard what it had prepared
		left, err := os.ReadDir(filepath.Join(b.dir, pickup.StagingName))
		return err == nil && len(left) == 0
	}, patience, 10*time.Millisecond)
}

// read returns the order and version of a mail.
func read(t *testing.T, path string) (order string, version int64) {
	t.Helper()
	file, err := os.Open(path)
	require.NoError(t, err)
	defer file.Close()
	m, err := mail.ReadMessage(file)
	require.NoError(t, err)
	version, err = strconv.ParseInt(m.Header.Get("X-Pillarbox-Version"), 10, 64)
	require.NoError(t, err)
	return m.Header.Get("X-Pillarbox-Order"), version
}

func TestReplicasWriteOneMailPerEventAndTheyAppearInVersionOrder(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "mailer", func(t *testing.T, db *database.DB) {
		const orders, versions = 20, 12
		b := setup(t, db)
		first, _ := b.start(t)
		b.ready(t, first)
		appearance := watch(t, b.dir)
		b.start(t)
		b.start(t)
		var bodies [][]byte
		for v := range versions {
			for o := range orders {
				bodies = append(bodies, event(t, fmt.Sprintf("o%d", o), int64(v+1), nil))
			}
		}
		for range 40 { // some come twice, at another place
			bodies = append(bodies, bodies[rand.IntN(orders*versions)])
		}
		// A wrong order on the topic, too: neighbours change places.
		for i := orders; i+orders < orders*versions; i += 3 {
			bodies[i], bodies[i+orders] = bodies[i+orders], bodies[i]
		}
		b.publish(t, bodies...)
		b.waitFor(t, orders*versions)
		b.settled(t)
		require.Len(t, b.files(t), orders*versions)
		require.Zero(t, b.count(t, "dead_letters"))

		next := map[string]int64{}
		for _, name := range appearance.names(t, orders*versions) {
			order, version := read(t, filepath.Join(b.dir, name))
			require.Equal(t, next[order]+1, version, "order %s", order)
			next[order] = version
		}
		judged := lettertest.Judge(t, b.dir)
		require.Len(t, judged, orders*versions)
		for _, m := range judged {
			require.Equal(t, "ada@example.com", m.To)
			require.Contains(t, m.Text, "Total: €9.00")
			require.Contains(t, m.Subject, "ref-"+m.Order)
			require.Equal(t, fmt.Sprintf("%s-%d", m.Order, m.Version), m.Event)
		}
	})
}

func TestStartsAndStopsUnderLoadLoseAndRepeatNothing(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "mailer", func(t *testing.T, db *database.DB) {
		const orders, versions = 10, 30
		b := setup(t, db)
		published := make(chan struct{})
		go func() {
			defer close(published)
			for v := range versions {
				for o := range orders {
					b.publish(t, event(t, fmt.Sprintf("o%d", o), int64(v+1), nil))
				}
			}
		}()
		for range 8 {
			at := len(b.files(t))
			_, stop := b.start(t)
			require.Eventually(t, func() bool { return len(b.files(t)) > at || len(b.files(t)) == orders*versions }, patience, time.Millisecond)
			stop()
		}
		<-published
		b.start(t)
		b.waitFor(t, orders*versions)
		b.settled(t)
		require.Len(t, b.files(t), orders*versions)
		require.Zero(t, b.count(t, "dead_letters"))
	})
}

func TestAnEventThatCannotBeAMailIsADeadLetterAndOthersGoOn(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "mailer", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		b.start(t)
		b.publish(t,
			event(t, "good", 1, nil),
			event(t, "bad", 1, func(o *events.Order) { o.Customer.Email = "no address" }),
			[]byte("no event"),
			event(t, "good", 2, nil),
		)
		b.waitFor(t, 2)
		require.Eventually(t, func() bool { return b.count(t, "dead_letters") == 2 }, patience, 5*time.Millisecond)
	})
}

func TestAFolderThatIsGoneIsAnOutageUntilItIsBack(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "mailer", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		s, _ := b.start(t)
		b.publish(t, event(t, "o", 1, nil))
		b.waitFor(t, 1)
		b.ready(t, s)

		away := b.dir + "-away"
		require.NoError(t, os.Rename(b.dir, away))
		require.NoError(t, os.Mkdir(b.dir, 0o755)) // an empty mount point
		b.publish(t, event(t, "o", 2, nil), event(t, "p", 1, nil))
		require.Eventually(t, func() bool {
			err := s.Ready(t.Context())
			return err != nil && db.Ping(t.Context()) == nil
		}, patience, 5*time.Millisecond)
		require.ErrorContains(t, s.Ready(t.Context()), "is it mounted?")
		other, _ := b.start(t)
		require.ErrorContains(t, other.Ready(t.Context()), "is it mounted?")
		entries, err := os.ReadDir(b.dir)
		require.NoError(t, err)
		require.Empty(t, entries, "nothing is written into the wrong folder")

		require.NoError(t, os.Remove(b.dir))
		require.NoError(t, os.Rename(away, b.dir))
		b.waitFor(t, 3)
		b.settled(t)
		require.Len(t, b.files(t), 3)
		require.Zero(t, b.count(t, "dead_letters"))
		require.Zero(t, b.count(t, "parked"), "an outage burns no attempts")
		b.ready(t, s)
		b.ready(t, other)
	})
}

func TestDurableIsRegisteredWhenTheStoreComesUp(t *testing.T) {
	t.Parallel()
	db, _ := databasetest.SQLite(t, "mailer")
	b := setup(t, db)
	b.start(t)
	b.publish(t, event(t, "o", 1, nil))
	b.waitFor(t, 1)
	requests, err := b.conn.NATS.SubscribeSync("pillarbox.register.orders")
	require.NoError(t, err)
	request, err := requests.NextMsg(patience)
	require.NoError(t, err)
	require.JSONEq(t, `{"name":"mailer","durable":"mailer-0"}`, string(request.Data))
	require.NoError(t, request.Respond([]byte(`{"ok":true}`)))
	require.NoError(t, requests.Unsubscribe())
}

func TestNewWantsItsParts(t *testing.T) {
	t.Parallel()
	db, _ := databasetest.SQLite(t, "mailer")
	for _, d := range []mailersvc.Deps{{}, {DB: db}, {DB: db, Broker: &broker.Conn{}}} {
		_, err := mailersvc.New(mailersvc.Config{}, d)
		require.ErrorContains(t, err, "required")
	}
	_, err := mailersvc.New(mailersvc.Config{Batch: -1}, mailersvc.Deps{})
	require.ErrorContains(t, err, "PILLARBOX_MAILER_BATCH")
}

// TestAtLeastOnceMailsAreStillOne: the delivery's own key knows an event that comes again. What is given up is the order:
// nobody waits for a version that is missing.
func TestAtLeastOnceMailsAreStillOne(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "mailer", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		s, _ := b.startAs(t, mailersvc.Config{Delivery: consumer.AtLeastOnce, Sweep: 200 * time.Millisecond})
		b.ready(t, s)
		b.publish(t, event(t, "o", 3, nil))
		b.waitFor(t, 1)
		b.publish(t, event(t, "o", 1, nil), event(t, "o", 3, nil), event(t, "o", 1, nil))
		b.settled(t)
		b.waitFor(t, 2)
	})
}
