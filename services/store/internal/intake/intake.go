// Package intake writes orders and their events in groups: what waits when a committer
// is free becomes one database transaction, so that a burst of requests shares the cost
// of a durable commit and a single request waits for nobody.
//
// It promises that an answer without an error is on disk, with its event in the outbox; that
// an error other than ErrUnknown means that nothing was stored; that one bad request of a
// group never fails another; and that an idempotency key makes one order, however many
// replicas see it, because the database's unique key decides. It does not promise that a
// request whose client has gone is dropped.
//
// A crash before a commit leaves nothing of the group; a crash between the commit and the
// answers leaves all of it, and a client that repeats its key gets the first answer.
//
//	Do ──► queue (bounded) ──► committer: up to N, one transaction ──► answers
//	                              │ deadlock, lock time-out, refused data
//	                              └──► each request again in a transaction of its own
package intake

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pillarbox/pillarbox/services/store/internal/order"
	"github.com/pillarbox/pillarbox/shared/database"
)

// What a request can end with besides the domain's own errors and orderdb.ErrNotFound.
var (
	// ErrBusy: the queue is full, or the request waited too long in it.
	ErrBusy = errors.New("intake is busy")
	// ErrBacklog: too many events wait for the broker.
	ErrBacklog = errors.New("outbox is over its limit")
	// ErrStopping: the service is stopping, or has not started.
	ErrStopping = errors.New("intake is stopping")
	// ErrUnavailable: the database is away.
	ErrUnavailable = errors.New("database is away")
	// ErrUnknown: the connection broke during the commit; the request may have been stored or not.
	ErrUnknown = errors.New("outcome unknown")
	// ErrTooLarge: the event would be larger than the broker takes.
	ErrTooLarge = errors.New("event too large")
	// ErrKeyReused: the idempotency key belongs to another request.
	ErrKeyReused = errors.New("idempotency key belongs to another request")
	// ErrVersion: the order is not at a version that the request was made for.
	ErrVersion = errors.New("order is at another version")
)

// Config of the intake; zero values mean the defaults.
type Config struct {
	Queue      int           // requests that may wait; default 1,000
	Group      int           // requests in one transaction; default 100
	GroupBytes int           // their bodies' size, after which a group is closed; default 4 MiB
	Committers int           // transactions at once; default 2
	Wait       time.Duration // in the queue before a request is given up; default 10 s
	Timeout    time.Duration // of one transaction; default 5 s
	Drain      time.Duration // for what waits at the stop; default 8 s
	MaxEvent   int           // bytes of an encoded event; default events.MaxSize
}

// Deps of the intake.
type Deps struct {
	DB       *database.DB
	Log      *slog.Logger
	Registry prometheus.Registerer
	// Admit reports why no event may be added now, or nil.
	Admit func() error
	// Wake says that events were committed.
	Wake func()
	// Render makes the answer that is stored for an idempotency key.
	Render func(order.Order) []byte
}

// Intake is the one way to write orders.
type Intake struct {
	config  Config
	deps    Deps
	metrics *metrics
	queue   chan *job
	// guards stopped and the closing of queue against senders
	mu      sync.RWMutex
	stopped bool
}

// New checks its arguments; it does no I/O.
func New(c Config, d Deps) (*Intake, error) {
	if d.DB == nil || d.Log == nil || d.Admit == nil || d.Wake == nil || d.Render == nil || d.Registry == nil {
		return nil, errors.New("intake: a dependency is missing")
	}
	c = c.withDefaults()
	in := &Intake{config: c, deps: d, queue: make(chan *job, c.Queue)}
	var err error
	if in.metrics, err = newMetrics(d.Registry, func() float64 { return float64(len(in.queue)) }); err != nil {
		return nil, fmt.Errorf("intake: %w", err)
	}
	return in, nil
}

// Full reports whether the queue has no room.
func (in *Intake) Full() bool { return len(in.queue) == cap(in.queue) }

// Run commits what comes until ctx ends. Then it takes nothing more, commits what waits, to
// the drain deadline, and refuses the rest.
func (in *Intake) Run(ctx context.Context) error {
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	var committers sync.WaitGroup
	for range in.config.Committers {
		committers.Go(func() { in.commitQueue(work) })
	}
	<-ctx.Done()
	deadline := time.AfterFunc(in.config.Drain, cancel)
	defer deadline.Stop()
	in.stop()
	committers.Wait()
	return nil
}

func (in *Intake) stop() {
	in.mu.Lock()
	defer in.mu.Unlock()
	if !in.stopped {
		in.stopped = true
		close(in.queue)
	}
}

// do hands the job to a committer and waits for its result.
func (in *Intake) do(ctx context.Context, j *job) (result, error) {
	if err := in.enqueue(j); err != nil {
		in.metrics.refused.WithLabelValues(reason(err)).Inc()
		return result{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, in.config.Wait)
	defer cancel()
	select {
	case <-j.done:
	case <-ctx.Done():
		if j.state.CompareAndSwap(waiting, abandoned) {
			in.metrics.refused.WithLabelValues(reason(ErrBusy)).Inc()
			return result{}, fmt.Errorf("%w: %w", ErrBusy, ctx.Err())
		}
		// A transaction has it. That is short, and only its end tells what became of the job.
		<-j.done
	}
	return j.result, j.result.err
}

func (in *Intake) enqueue(j *job) error {
	if err := in.deps.Admit(); err != nil {
		return err
	}
	in.mu.RLock()
	defer in.mu.RUnlock()
	if in.stopped {
		return ErrStopping
	}
	select {
	case in.queue <- j:
		return nil
	default:
		return ErrBusy
	}
}

// job is one request on its way. The committer that moves state from waiting to taken owns
// result until it closes done.
type job struct {
	placement *order.Placement // a new order, else change
	change    func(o order.Order, at time.Time) (changed order.Order, differs bool, err error)
	eventType string
	orderID   string
	keyed     *Keyed
	trace     Trace
	size      int

	state  atomic.Int32
	done   chan struct{}
	result result
}

const (
	waiting int32 = iota
	taken
	abandoned
)

type result struct {
	order  order.Order // of a change
	answer Answer      // to a placement
	err    error
}

func (j *job) finish(r result) {
	j.result = r
	close(j.done)
}
