package outbox_test

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/broker/brokertest"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
	"github.com/pillarbox/pillarbox/shared/events"
	"github.com/pillarbox/pillarbox/shared/logs"
	"github.com/pillarbox/pillarbox/shared/outbox"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = time.Minute

// bundle is a store's database and a broker.
type bundle struct {
	t    testing.TB
	db   *database.DB
	conn *broker.Conn
}

// each runs test on both engines with a broker of its own.
func each(t *testing.T, test func(t *testing.T, b *bundle)) {
	databasetest.Each(t, "store", func(t *testing.T, db *database.DB) {
		test(t, &bundle{t: t, db: db, conn: brokertest.Connect(t, brokertest.Server(t))})
	})
}

// eachProcess is each with a broker that can be killed, wiped and restored.
func eachProcess(t *testing.T, test func(t *testing.T, b *bundle, p *brokertest.Process)) {
	databasetest.Each(t, "store", func(t *testing.T, db *database.DB) {
		p := brokertest.StartProcess(t)
		test(t, &bundle{t: t, db: db, conn: brokertest.ConnectURL(t, p.URL)}, p)
	})
}

// running is a relay that runs until stop or the end of the test.
type running struct {
	*outbox.Relay
	metrics *prometheus.Registry
	stop    func() error
	ctx     context.Context
}

type options struct {
	config     outbox.Config
	hook       func(step string)
	purgeEvery time.Duration
}

func (b *bundle) relay(o options) *running {
	b.t.Helper()
	if o.config.Holder == "" {
		o.config.Holder = uuid.NewString()
	}
	if o.config.Poll == 0 {
		o.config.Poll = 20 * time.Millisecond
	}
	if o.config.LeaseTTL == 0 {
		o.config.LeaseTTL = time.Hour // a slow disk must not look like a dead leader
	}
	metrics := prometheus.NewRegistry()
	r, err := outbox.NewRelay(o.config, b.db, b.conn, logs.New(b.t.Output(), "text", slog.LevelDebug), metrics)
	require.NoError(b.t, err)
	if o.hook != nil {
		outbox.SetHook(r, o.hook)
	}
	if o.purgeEvery > 0 {
		outbox.SetPurgeEvery(r, o.purgeEvery)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	stop := sync.OnceValue(func() error { cancel(); return <-ended })
	b.t.Cleanup(func() { require.NoError(b.t, stop()) })
	return &running{Relay: r, metrics: metrics, stop: stop, ctx: ctx}
}

func (r *running) metric(t testing.TB, name string) float64 {
	t.Helper()
	families, err := r.metrics.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() == name {
			m := f.GetMetric()[0]
			return m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	require.FailNow(t, "no metric "+name)
	return 0
}

// row makes an event whose payload says what it is.
func row(order string, version int64, size int) outbox.Row {
	id := uuid.NewString()
	payload := fmt.Sprintf("%s %s %d ", id, order, version)
	return outbox.Row{
		Event:   events.Event{ID: id, Type: events.TypePlaced, Subject: order, Version: version},
		Payload: []byte(payload + strings.Repeat("x", max(0, size-len(payload)))),
	}
}

// commit appends rows in one transaction.
func (b *bundle) commit(rows ...outbox.Row) {
	b.t.Helper()
	require.NoError(b.t, b.db.Tx(b.t.Context(), func(ctx context.Context, tx *database.Tx) error {
		return outbox.Append(ctx, tx, rows)
	}))
}

// orders makes one placed event for each of n new orders.
func orders(n int) []outbox.Row {
	rows := make([]outbox.Row, n)
	for i := range rows {
		rows[i] = row(uuid.NewString(), 1, 200)
	}
	return rows
}

// got is a message of the stream.
type got struct {
	seq            uint64
	publishID      string
	eventID, order string
	version        int64
}

// stream reads all that is in the stream.
func (b *bundle) stream() []got {
	b.t.Helper()
	ctx := b.t.Context()
	s, err := b.conn.JS.Stream(ctx, events.StreamOrders)
	require.NoError(b.t, err)
	state := s.CachedInfo().State
	var all []got
	if state.Msgs == 0 {
		return nil
	}
	for seq := state.FirstSeq; seq <= state.LastSeq; seq++ {
		m, err := s.GetMsg(ctx, seq)
		require.NoError(b.t, err)
		if m.Subject != events.TopicOrders {
			continue
		}
		words := strings.SplitN(string(m.Data), " ", 4)
		version, err := strconv.ParseInt(words[2], 10, 64)
		require.NoError(b.t, err)
		all = append(all, got{
			seq: seq, publishID: m.Header.Get(jetstream.MsgIDHeader), eventID: words[0], order: words[1], version: version,
		})
	}
	return all
}

// inEffect checks that the first arrivals of each order's events are in the order of their
// versions without a gap, as a consumer that deduplicates would see them, and returns the event ids.
func inEffect(t testing.TB, messages []got) map[string]int {
	t.Helper()
	lanes, count := map[string]int64{}, map[string]int{}
	for _, m := range messages {
		count[m.eventID]++
		if count[m.eventID] == 1 {
			require.Equal(t, lanes[m.order]+1, m.version, "order %s", m.order)
			lanes[m.order] = m.version
		}
	}
	return count
}

// drained waits until the outbox has no waiting row.
func (b *bundle) drained() {
	b.t.Helper()
	b.eventually(func() bool {
		s, err := outbox.ReadStatus(b.t.Context(), b.db)
		return err == nil && s.Waiting == 0
	}, "outbox not drained")
}

func (b *bundle) eventually(ok func() bool, message string) {
	b.t.Helper()
	require.Eventually(b.t, ok, patience, 10*time.Millisecond, message)
}

// number runs a query with one whole number as its answer; NULL is -1.
func (b *bundle) number(query string, args ...any) int64 {
	b.t.Helper()
	var n *int64
	require.NoError(b.t, b.db.Read().QueryRowContext(b.t.Context(), query, args...).Scan(&n))
	if n == nil {
		return -1
	}
	return *n
}

func (b *bundle) exec(query string, args ...any) {
	b.t.Helper()
	require.NoError(b.t, b.db.Tx(context.WithoutCancel(b.t.Context()), func(ctx context.Context, tx *database.Tx) error {
		_, err := tx.ExecContext(ctx, query, args...)
		return err
	}))
}

// usurp ends the present leader's term as if it had been silent for too long.
func (b *bundle) usurp() { b.exec(`UPDATE leases SET term = term + 1, expires_at = 0`) }

// once returns a hook that does something at the first time of one step.
func once(step string, do func()) func(string) {
	var o sync.Once
	return func(name string) {
		if name == step {
			o.Do(do)
		}
	}
}

func ids(rows []outbox.Row) []string {
	var all []string
	for _, r := range rows {
		all = append(all, r.Event.ID)
	}
	return all
}

func eventIDs(messages []got) []string {
	var all []string
	for _, m := range messages {
		all = append(all, m.eventID)
	}
	return all
}

func (r *running) stopping() bool { return r.ctx.Err() != nil }
