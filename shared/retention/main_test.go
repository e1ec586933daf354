package retention_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/logs"
	"github.com/pillarbox/pillarbox/shared/retention"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("database/sql.(*DB).connectionOpener"))
}

const (
	patience = time.Minute
	day      = 24 * time.Hour
)

// log keeps what a cleaner says.
type log struct {
	mu   sync.Mutex // guards text
	text strings.Builder
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *log) count(part string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), part)
}

// replica is a running cleaner.
type replica struct {
	log     log
	metrics *prometheus.Registry
	stop    func()
}

func start(t *testing.T, db *database.DB, c retention.Config, rules ...retention.Rule) *replica {
	t.Helper()
	set := func(d *time.Duration, standard time.Duration) {
		if *d == 0 {
			*d = standard
		}
	}
	set(&c.Every, 5*time.Millisecond)
	set(&c.Pause, time.Microsecond)
	set(&c.Poll, 10*time.Millisecond)
	r := &replica{metrics: prometheus.NewRegistry()}
	cleaner, err := retention.New(c, retention.Deps{DB: db, Log: logs.New(&r.log, "text", slog.LevelInfo), Registry: r.metrics}, rules...)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); cleaner.Run(ctx) }()
	r.stop = func() { cancel(); <-done }
	t.Cleanup(r.stop)
	return r
}

// metric is the value of a rule's metric, or of one that knows no rules; −1 when there is none.
func (r *replica) metric(t *testing.T, name, rule string) float64 {
	t.Helper()
	families, err := r.metrics.Gather()
	require.NoError(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && (rule == "" || m.GetLabel()[0].GetValue() == rule) {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return -1
}

func exec(t *testing.T, db *database.DB, query string, args ...any) {
	t.Helper()
	require.NoError(t, db.Tx(context.Background(), func(ctx context.Context, tx *database.Tx) error {
		_, err := tx.ExecContext(ctx, query, args...)
		return err
	}))
}

func count(t *testing.T, db *database.DB, query string) (n int) {
	t.Helper()
	require.NoError(t, db.Read().QueryRowContext(context.Background(), query).Scan(&n))
	return n
}

func eventually(t *testing.T, ok func() bool, what string) {
	t.Helper()
	require.Eventually(t, ok, patience, 2*time.Millisecond, what)
}

// fill writes n actions that are so old.
func fill(t *testing.T, db *database.DB, n int, age time.Duration) {
	t.Helper()
	for first := 0; first < n; first += 100 {
		part := min(100, n-first)
		args := make([]any, 0, 2*part)
		for i := range part {
			args = append(args, database.Micros(time.Now().Add(-age)), fmt.Sprint(first+i))
		}
		exec(t, db, `INSERT INTO operator_actions (at, target, who, action, reason, result)
			SELECT a.at, a.target, 'w', 'a', 'r', 'r' FROM (`+union(part)+`) AS a`, args...)
	}
}

func union(n int) string {
	parts := make([]string, n)
	for i := range n {
		parts[i] = fmt.Sprintf("SELECT CAST($%d AS BIGINT) AS at, CAST($%d AS TEXT) AS target", 2*i+1, 2*i+2)
	}
	return strings.Join(parts, " UNION ALL ")
}

func actions(keep time.Duration) retention.Rule {
	return retention.Rule{Name: "actions", Keep: keep, Bite: retention.Rows("operator_actions", "id", "at", ""),
		Oldest: `SELECT min(at) FROM operator_actions`}
}

const left = `SELECT count(*) FROM operator_actions`
