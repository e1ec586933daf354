package consumer

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/events"
	"github.com/pillarbox/pillarbox/shared/logs"
	"github.com/pillarbox/pillarbox/shared/wait"
)

const (
	lagEvery   = 5 * time.Second
	lagTimeout = 5 * time.Second
	// maxMarks bounds what is remembered; then every second mark goes, and ages get coarser.
	maxMarks = 256
)

// Backlogs tells how far a group is behind (broker.Conn).
type Backlogs interface {
	Backlog(ctx context.Context, topic, group string) (broker.Backlog, error)
}

// Lag watches how long the oldest event waits that the consumer's group has not handled, in the stream or parked
// and due.
//
// Of an event in the stream it knows since when this process has seen it there: that needs no right to read
// messages, never says too much, and gives a process that starts on an old backlog the time of its limit to work it
// off before it counts as not ready. The group's replicas see the same backlog, so they are late together.
type Lag struct {
	limit    time.Duration
	group    string
	backlogs Backlogs
	db       *database.DB
	log      *slog.Logger
	now      func() time.Time

	waiting, oldest, overdue prometheus.Gauge

	mu      sync.Mutex // guards marks and late
	marks   []reach    // oldest first; empty: nothing waits
	late    time.Duration
	failing bool // only Run's goroutine uses it
}

// reach says that at a time the stream reached up to a sequence.
type reach struct {
	at   time.Time
	last uint64
}

// LagConfig of NewLag.
type LagConfig struct {
	Name  string           // of the consumer
	Limit time.Duration    // age above which Ready fails; required
	Now   func() time.Time // default time.Now
}

// NewLag does no I/O.
func NewLag(c LagConfig, b Backlogs, db *database.DB, log *slog.Logger, r prometheus.Registerer) (*Lag, error) {
	if c.Name == "" || c.Limit <= 0 || b == nil || db == nil || log == nil {
		return nil, errors.New("lag: name, limit, broker, database and log are required")
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: prometheus.Labels{"consumer": c.Name}})
	}
	l := &Lag{
		limit: c.Limit, group: c.Name, backlogs: b, db: db, log: log.With(logs.Consumer, c.Name), now: c.Now,
		waiting: gauge("consumer_unhandled_messages", "Messages in the stream that the group has not acknowledged."),
		oldest: gauge("consumer_oldest_unhandled_seconds",
			"Time for which this process has seen the oldest message wait that the group has not acknowledged."),
		overdue: gauge("consumer_overdue_seconds", "Time since the next attempt at a parked event was due."),
	}
	if r == nil {
		return l, nil
	}
	for _, m := range []prometheus.Collector{l.waiting, l.oldest, l.overdue} {
		if err := r.Register(m); err != nil {
			return nil, fmt.Errorf("register lag metrics: %w", err)
		}
	}
	return l, nil
}

// Run looks every few seconds until ctx ends. What cannot be asked keeps its last value, and what waits grows older.
func (l *Lag) Run(ctx context.Context) {
	for {
		err := l.Look(ctx)
		if err != nil && !l.failing && ctx.Err() == nil {
			l.log.DebugContext(ctx, "backlog cannot be seen", logs.Error, err)
		}
		l.failing = err != nil
		if !wait.For(ctx, wait.Jitter(lagEvery)) {
			return
		}
	}
}

// Look looks once.
func (l *Lag) Look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, lagTimeout)
	defer cancel()
	b, err := l.backlogs.Backlog(ctx, events.TopicOrders, l.group)
	if err == nil {
		l.note(b)
		l.waiting.Set(float64(b.Waiting))
	}
	late, failed := l.readOverdue(ctx)
	l.mu.Lock()
	if failed == nil {
		l.late = late
	}
	l.mu.Unlock()
	l.oldest.Set(l.Age().Seconds())
	if failed == nil {
		l.overdue.Set(late.Seconds())
	}
	return errors.Join(err, failed)
}

// note remembers how far the stream reached, as long as something below that is not handled.
func (l *Lag) note(b broker.Backlog) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if b.Waiting == 0 {
		l.marks = nil
		return
	}
	kept := l.marks[:0]
	for _, m := range l.marks {
		// Marks above the stream's end are of a stream that was lost.
		if m.last > b.AckFloor && m.last <= b.LastSeq {
			kept = append(kept, m)
		}
	}
	l.marks = kept
	if n := len(l.marks); n == 0 || l.marks[n-1].last < b.LastSeq {
		l.marks = append(l.marks, reach{l.now(), b.LastSeq})
	}
	if len(l.marks) <= maxMarks {
		return
	}
	thin := l.marks[:0]
	for i, m := range l.marks {
		if i%2 == 0 || i == len(l.marks)-1 {
			thin = append(thin, m)
		}
	}
	l.marks = thin
}

// readOverdue is for how long a parked event is due that nobody works on.
func (l *Lag) readOverdue(ctx context.Context) (time.Duration, error) {
	now := l.db.Dialect().Now()
	var late sql.NullInt64
	err := l.db.Read().QueryRowContext(ctx, `SELECT `+now+` - min(next_attempt_at) FROM parked
		WHERE state = 'parked' AND claimed_until <= `+now).Scan(&late)
	if err != nil {
		return 0, fmt.Errorf("read what is due: %w", err)
	}
	return max(0, time.Duration(late.Int64)*time.Microsecond), nil
}

// Age is for how long the oldest unhandled event in the stream was seen to wait; 0 when there is none.
func (l *Lag) Age() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.marks) == 0 {
		return 0
	}
	return l.now().Sub(l.marks[0].at)
}

// Ready reports what has waited for longer than the limit, or nil.
func (l *Lag) Ready() error {
	if age := l.Age(); age > l.limit {
		return fmt.Errorf("the oldest event in the stream has waited for %s", age.Round(time.Second))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.late > l.limit {
		return fmt.Errorf("a parked event is due for %s", l.late.Round(time.Second))
	}
	return nil
}
