package intake_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/pillarbox/pillarbox/services/store/internal/intake"
	"github.com/pillarbox/pillarbox/services/store/internal/order"
	"github.com/pillarbox/pillarbox/services/store/internal/orderdb"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/logs"
)

const deadline = 20 * time.Second

// desk is an intake that the test starts when it has queued what it wants in one group.
type desk struct {
	*intake.Intake
	t        testing.TB
	registry *prometheus.Registry
	start    func()
	stop     func()
}

func newDesk(t testing.TB, db *database.DB, c intake.Config) *desk {
	t.Helper()
	d := &desk{t: t, registry: prometheus.NewRegistry()}
	var err error
	d.Intake, err = intake.New(c, intake.Deps{
		DB: db, Log: logs.Discard(), Registry: d.registry,
		Admit: func() error { return nil }, Wake: func() {},
		Render: func(o order.Order) []byte { return []byte("order " + o.ID) },
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	var once, started sync.Once
	d.start = func() { started.Do(func() { go func() { done <- d.Run(ctx) }() }) }
	d.stop = func() {
		once.Do(func() {
			cancel()
			d.start()
			require.NoError(t, <-done)
		})
	}
	t.Cleanup(d.stop)
	return d
}

func placement(t testing.TB) order.Placement {
	t.Helper()
	p, broken := order.CheckDraft(order.Draft{
		Customer: order.Customer{Email: "ada@example.com"}, Currency: "EUR",
		Items: []order.DraftItem{{SKU: "TEA-01", Name: "Green tea", Quantity: 2, UnitPrice: "4.50"}},
	})
	require.Empty(t, broken)
	return p
}

func rename(t testing.TB, name string) order.Revision {
	t.Helper()
	r, broken := order.CheckRevision(order.RevisionDraft{CustomerName: &name}, 2)
	require.Empty(t, broken)
	return r
}

func keyed(name, fingerprint string) *intake.Keyed {
	return &intake.Keyed{Key: orderdb.Key{Caller: "c", Name: name}, Fingerprint: []byte(fingerprint)}
}

func (d *desk) place(k *intake.Keyed) (intake.Answer, error) {
	return d.Place(context.Background(), placement(d.t), k, intake.Trace{}, 100)
}

// mustPlace places an order and returns its id.
func (d *desk) mustPlace() string {
	d.t.Helper()
	a, err := d.place(nil)
	require.NoError(d.t, err)
	return a.OrderID
}

// metric is the value of a counter, or the count and sum of a histogram.
func (d *desk) metric(name string) (value, sum float64) {
	d.t.Helper()
	families, err := d.registry.Gather()
	require.NoError(d.t, err)
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			value += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			sum += m.GetHistogram().GetSampleSum()
		}
	}
	return value, sum
}

// queued waits until n requests wait.
func (d *desk) queued(n int) {
	d.t.Helper()
	require.Eventually(d.t, func() bool {
		waiting, _ := d.metric("intake_queue_requests")
		return int(waiting) == n
	}, deadline, time.Millisecond)
}

func count(t testing.TB, db *database.DB, table string) (n int) {
	t.Helper()
	require.NoError(t, db.Read().QueryRowContext(context.Background(), "SELECT count(*) FROM "+table).Scan(&n))
	return n
}

// history reads an order's versions in the order of the outbox, which is the order of publishing.
func history(t testing.TB, db *database.DB, id string) (versions []int64) {
	t.Helper()
	rows, err := db.Read().QueryContext(context.Background(),
		`SELECT e.version FROM outbox o JOIN events e ON e.id = o.event_id WHERE e.order_id = $1 ORDER BY o.seq`, id)
	require.NoError(t, err)
	for rows.Next() {
		var v int64
		require.NoError(t, rows.Scan(&v))
		versions = append(versions, v)
	}
	require.NoError(t, rows.Err())
	require.NoError(t, rows.Close())
	return versions
}

func upTo(n int64) (versions []int64) {
	for v := int64(1); v <= n; v++ {
		versions = append(versions, v)
	}
	return versions
}

func TestMain(m *testing.M) {
	if crashChild() {
		return
	}
	goleak.VerifyTestMain(m)
}
