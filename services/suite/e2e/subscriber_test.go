package e2e_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/suite/e2e"
	"github.com/pillarbox/pillarbox/services/suite/e2e/stock"
	"github.com/pillarbox/pillarbox/services/suite/inprocess"
	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/consumer"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/events"
	"github.com/pillarbox/pillarbox/shared/logs"
)

// subscriber is one that the store knows nothing of: two replicas of package stock on a database of their own.
type subscriber struct {
	t        *testing.T
	db       *database.DB
	replicas []*stock.Service
	stop     func()
}

// startSubscriber starts it; each replica has a connection of its own from connect.
func startSubscriber(t *testing.T, name, url string, from consumer.From, connect func() *broker.Conn) *subscriber {
	t.Helper()
	db, err := stock.Open(t.Context(), url, name)
	require.NoError(t, err)
	s := &subscriber{t: t, db: db}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	for range 2 {
		log := logs.New(t.Output(), "text", slog.LevelInfo)
		replica, err := stock.New(name, consumer.Settings{Batch: 50, Policy: consumer.Policy{EventsFrom: from}}, db, connect(), log)
		require.NoError(t, err)
		s.replicas = append(s.replicas, replica)
		go func() { ended <- replica.Run(ctx) }()
	}
	s.stop = sync.OnceFunc(func() {
		cancel()
		for range s.replicas {
			require.NoError(t, <-ended)
		}
	})
	t.Cleanup(func() { s.stop(); require.NoError(t, db.Close()) })
	return s
}

// complete waits until all that was wanted of the past was counted, as both replicas see it.
func (s *subscriber) complete() {
	s.t.Helper()
	require.Eventually(s.t, func() bool {
		return !slices.ContainsFunc(s.replicas, func(r *stock.Service) bool { return !r.Complete() })
	}, 2*time.Minute, 20*time.Millisecond, "the past is not complete")
}

// counted are the events that took effect, in that order.
func (s *subscriber) counted() (all []e2e.Fact) {
	s.t.Helper()
	rows, err := s.db.Read().QueryContext(s.t.Context(), `SELECT order_id, version FROM counted ORDER BY position`)
	require.NoError(s.t, err)
	defer rows.Close()
	for rows.Next() {
		var f e2e.Fact
		require.NoError(s.t, rows.Scan(&f.Order, &f.Version))
		all = append(all, f)
	}
	require.NoError(s.t, rows.Err())
	return all
}

func (s *subscriber) number(query string) (n int64) {
	s.t.Helper()
	require.NoError(s.t, s.db.Read().QueryRowContext(s.t.Context(), query).Scan(&n))
	return n
}

// holds waits until the subscriber has counted these facts, and checks that it counted each once, those of an order
// in order, and nothing else.
func (s *subscriber) holds(want []e2e.Fact) {
	s.t.Helper()
	require.Eventually(s.t, func() bool { return len(s.counted()) >= len(want) }, deadline, 20*time.Millisecond, "not all counted")
	got := s.counted()
	last := map[string]int64{}
	for _, f := range got {
		require.Greater(s.t, f.Version, last[f.Order], "order %s", f.Order)
		last[f.Order] = f.Version
	}
	name := func(f e2e.Fact) string { return fmt.Sprintf("%s %d", f.Order, f.Version) }
	require.ElementsMatch(s.t, texts(want, name), texts(got, name))
	require.Zero(s.t, s.number(`SELECT count(*) FROM parked`))
	require.Zero(s.t, s.number(`SELECT count(*) FROM dead_letters`))
}

func texts(facts []e2e.Fact, name func(e2e.Fact) string) (all []string) {
	for _, f := range facts {
		all = append(all, name(f))
	}
	return all
}

// trade places n orders, changes each third and cancels each fifth.
func (b *bench) trade(t *testing.T, n int) {
	t.Helper()
	for i := range n {
		o, err := b.client.Place(b.ctx, e2e.Body(fmt.Sprintf("shopper-%d@example.com", i%7), "EUR", 1+i%4, "2.00"))
		require.NoError(t, err)
		if i%3 == 0 {
			o, err = b.client.Change(b.ctx, o, 5, "2.00")
			require.NoError(t, err)
		}
		if i%5 == 0 {
			_, err = b.client.Cancel(b.ctx, o)
			require.NoError(t, err)
		}
	}
}

// since are the facts that are not among the earlier ones.
func (b *bench) since(earlier []e2e.Fact) []e2e.Fact {
	return slices.DeleteFunc(b.truth.Facts(), func(f e2e.Fact) bool { return slices.Contains(earlier, f) })
}

// dialer connects as a user of a cluster's broker.
func dialer(t *testing.T, c *e2e.Cluster, user string) func() *broker.Conn {
	return func() *broker.Conn {
		conn, err := broker.Connect(broker.Config{URL: c.NATSURL(user), Name: "pillarbox-" + user}, logs.Discard())
		require.NoError(t, err)
		t.Cleanup(conn.Close)
		return conn
	}
}

// emptyStream purges all events by force, as an operator might, once every consumer has them.
func emptyStream(t *testing.T, conn *broker.Conn) {
	t.Helper()
	require.Eventually(t, conn.NATS.IsConnected, deadline, 10*time.Millisecond)
	stream, err := conn.JS.Stream(t.Context(), events.StreamOrders)
	require.NoError(t, err)
	require.NoError(t, stream.Purge(t.Context()))
}

func startSubscriberCluster(t *testing.T) *e2e.Cluster {
	t.Helper()
	return startClusterOf(t, e2e.ClusterConfig{Replicas: 1, Subscriber: "stock"})
}

// TestASubscriberOfOnesOwn joins a running line, whose stream has forgotten the past, with the permissions of a
// subscriber, and leaves it again.
func TestASubscriberOfOnesOwn(t *testing.T) {
	t.Parallel()
	c := startSubscriberCluster(t)
	b := begin(t, c.Line())
	b.trade(t, 30)
	b.conserved(t)
	old := b.truth.Facts()
	boundary := time.Now() // the servers share this machine's clock
	b.trade(t, 20)
	b.conserved(t)
	young := b.since(old)
	emptyStream(t, dialer(t, c, "operator")())

	stock := dialer(t, c, "stock")
	all := startSubscriber(t, "stock", c.DatabaseURL("postgres"), "start", stock)
	all.complete()
	all.holds(append(slices.Clone(old), young...))
	quantity := all.number(`SELECT CAST(sum(quantity) AS BIGINT) FROM taken`)
	some := startSubscriber(t, "recent", c.DatabaseURL("postgres"), consumer.From(boundary.Format(time.RFC3339Nano)), stock)
	some.complete()
	some.holds(young)
	none := startSubscriber(t, "newcomer", c.DatabaseURL("postgres"), "now", stock)
	none.complete()
	none.holds(nil)

	joined := b.truth.Facts()
	b.trade(t, 15)
	latest := b.since(joined)
	b.conserved(t)
	all.holds(b.truth.Facts())
	some.holds(append(slices.Clone(young), latest...))
	none.holds(latest)
	require.NotEqual(t, quantity, all.number(`SELECT CAST(sum(quantity) AS BIGINT) FROM taken`))

	// One leaves: nothing waits for it any more.
	super := as(t, c, "postgres")
	registered := func() []string {
		return super.texts(t, `SELECT name FROM store.consumers ORDER BY name`)
	}
	require.Equal(t, []string{"audit", "loyalty", "mailer", "newcomer", "recent", "stock"}, registered())
	none.stop()
	out, err := exec.CommandContext(t.Context(), filepath.Join(c.Config.Binaries.Dir, "suite"), "queue", "rm", "orders",
		"--consumer", "newcomer", "--yes", "--nats", c.NATSURL("operator")).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "and from the store's list")
	require.Equal(t, []string{"audit", "loyalty", "mailer", "recent", "stock"}, registered())
	require.Equal(t, []string{"recent", "stock"}, super.texts(t, `SELECT name FROM store.replays ORDER BY name`))

	// And comes back: what it missed is brought to it, since it asks again; what it has it does not count twice.
	before := b.truth.Facts()
	b.trade(t, 10)
	b.conserved(t)
	emptyStream(t, dialer(t, c, "operator")())
	back := startSubscriber(t, "newcomer", c.DatabaseURL("postgres"), "now", stock)
	back.complete()
	back.holds(append(slices.Clone(latest), b.since(before)...))
}

// TestASubscriberOfTheSuite is the same over the embedded broker's port.
func TestASubscriberOfTheSuite(t *testing.T) {
	t.Parallel()
	suite := startSuiteProcess(t)
	b := begin(t, suite.Line())
	b.trade(t, 30)
	b.conserved(t)
	connect := func() *broker.Conn {
		attached, err := inprocess.Attach(t.Context(), suite.Dir, logs.Discard())
		require.NoError(t, err)
		require.True(t, attached.Suite)
		t.Cleanup(func() { require.NoError(t, attached.Close()) })
		return attached.Conn
	}
	emptyStream(t, connect())
	s := startSubscriber(t, "stock", "sqlite:"+filepath.Join(t.TempDir(), "stock.db"), "start", connect)
	s.complete()
	b.trade(t, 10)
	s.holds(b.truth.Facts())
	b.conserved(t)
}

// TestCrashAtEachStepOfAReplay kills the store between any two durable steps of a replay.
func TestCrashAtEachStepOfAReplay(t *testing.T) {
	t.Parallel()
	c := startSubscriberCluster(t)
	b := begin(t, c.Line())
	const orders = 600 // three pages
	elements := make([]element, orders)
	for i := range elements {
		elements[i] = element{Key: fmt.Sprintf("past-%d", i), Order: e2e.Body("ada@example.com", "EUR", 1, "1.00")}
	}
	results, _ := sendBatch(t, b.Stores[0], elements)
	for _, r := range results {
		b.truth.Acknowledge(r.Order)
	}
	b.conserved(t)
	emptyStream(t, dialer(t, c, "operator")())
	store := c.Services["store"][0]
	for n, step := range replaySteps {
		require.NoError(t, store.Stop())
		s := startSubscriber(t, fmt.Sprintf("stock%d", n), c.DatabaseURL("postgres"), "start", dialer(t, c, "stock"))
		count := 1
		if strings.HasSuffix(step, "published") || strings.HasSuffix(step, "settled") {
			count = 2
		}
		runInto(t, store, step, count)
		require.NoError(t, store.Run(t.Context()))
		s.complete()
		s.holds(b.truth.Facts())
		s.stop()
	}
}

// TestBrokerStoreWipedInAReplay loses what was replayed while it waits to be handled.
func TestBrokerStoreWipedInAReplay(t *testing.T) {
	t.Parallel()
	c := startSubscriberCluster(t)
	b := begin(t, c.Line())
	b.trade(t, 40)
	b.conserved(t)
	emptyStream(t, dialer(t, c, "operator")())
	db, err := stock.Open(t.Context(), c.DatabaseURL("postgres"), "stock")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	// Nothing can be counted while this is locked.
	locker, err := database.Open(c.DatabaseURL("postgres"), database.Options{MaxConns: 1})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, locker.Close()) })
	locked, release, freed := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		freed <- locker.Tx(context.WithoutCancel(t.Context()), func(ctx context.Context, tx *database.Tx) error {
			_, err := tx.ExecContext(ctx, `SET LOCAL idle_in_transaction_session_timeout = 0; LOCK TABLE stock.counted IN ACCESS EXCLUSIVE MODE`)
			close(locked)
			<-release
			return err
		})
	}()
	<-locked
	s := startSubscriber(t, "stock", c.DatabaseURL("postgres"), "start", dialer(t, c, "stock"))
	super := as(t, c, "postgres")
	state := func() []string { return super.texts(t, `SELECT state FROM store.replays`) }
	require.Eventually(t, func() bool { return slices.Equal(state(), []string{"published"}) }, deadline, 20*time.Millisecond)
	require.NoError(t, c.NATS.Kill())
	require.NoError(t, os.RemoveAll(c.NATSStore()))
	require.NoError(t, c.NATS.Run(t.Context()))
	close(release)
	require.NoError(t, <-freed)
	s.complete()
	s.holds(b.truth.Facts())
	b.conserved(t)
	require.Equal(t, []string{"handled"}, state())
}
