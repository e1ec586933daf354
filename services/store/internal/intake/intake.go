// Package intake writes orders and their events in groups: what waits when a committer
// is free becomes one database transaction, so that a burst of requests shares the cost
// of a durable commit and a single request waits for nobody. Those who come back right after
// their answer are waited for, a part of a commit's time at most (see returning). In ModeSingle no request
// shares a transaction with another one. A batch of orders comes in parts, each of at most
// a group's size and in one transaction, so that it neither fills the queue nor holds
// others up for longer than a group does.
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
//	Place ──► queue (bounded) ──► committer: up to N ──► one transaction ──► answers
//	   └───── nothing waits and nobody commits ─────────────┘   │ deadlock, lock time-out, refused data
//	                                                            └──► each request again in a transaction of its own
//
// Accept (ModeAsync) is the exception to the first promise: it answers before it stores. What
// it took is kept in memory until FlushCount orders wait or FlushEvery has passed, and at
// most twice FlushCount are in memory: one half fills while the other is written. A crash loses
// those and nothing else, so at most 2 × FlushCount orders, and while the database keeps up only
// what was accepted within the last FlushEvery and the time of a flush. While the database is away they are
// kept and tried again, and a full memory refuses. At a stop everything is written, to the drain
// deadline. An order that the database refuses after it was accepted, or that a stop could not
// write, is logged as an error and counted; it takes no other with it.
//
//	Accept ──► memory (≤ 2 × FlushCount) ──► flusher: by time and by count, one transaction per group
//	                                            │ database away: again     │ refused data: each order alone
package intake

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
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

// Mode is how placements become transactions.
type Mode string

// The modes.
const (
	ModeGroup  Mode = "group"  // one transaction for the requests that wait
	ModeSingle Mode = "single" // one transaction for each request
	ModeAsync  Mode = "async"  // Accept answers before the transaction; all else as in ModeGroup
)

// Config of the intake; zero values mean the defaults.
type Config struct {
	Mode       Mode          // default ModeGroup
	Queue      int           // requests that may wait; default 1,000
	Group      int           // requests in one transaction; default 100
	GroupBytes int           // their bodies' size, after which a group is closed; default 4 MiB
	Committers int           // transactions at once; default 2
	Wait       time.Duration // in the queue before a request is given up; default 10 s
	Timeout    time.Duration // of one transaction; default 5 s
	Drain      time.Duration // for what waits at the stop; default 8 s
	MaxEvent   int           // bytes of an encoded event; default events.MaxSize
	FlushEvery time.Duration // of accepted orders; default 50 ms
	FlushCount int           // accepted orders that are flushed at once; at most twice as many are in memory; default 500
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
	clock   clock
	queue   chan *request
	slots   chan struct{}        // one for each transaction that runs
	turn    chan context.Context // capacity 1: the context of all transactions; who begins one holds it
	working sync.WaitGroup       // committers, and requests that commit by themselves
	shelf   *shelf

	mu      sync.RWMutex // guards stopped, and the closing of queue and the end of working against those who come
	stopped bool

	taking    sync.Mutex // guards left: one committer at a time makes a group
	left      *request   // taken from the queue, and not in a group yet
	returning returning  // belongs to the turn's holder
}

// New checks its arguments; it does no I/O.
func New(c Config, d Deps) (*Intake, error) {
	if d.DB == nil || d.Log == nil || d.Admit == nil || d.Wake == nil || d.Render == nil || d.Registry == nil {
		return nil, errors.New("intake: a dependency is missing")
	}
	c = c.withDefaults()
	switch c.Mode {
	case ModeGroup, ModeSingle, ModeAsync:
	default:
		return nil, fmt.Errorf("intake: unknown mode %q", c.Mode)
	}
	in := &Intake{
		config: c, deps: d, clock: clock{db: d.DB}, queue: make(chan *request, c.Queue),
		slots: make(chan struct{}, c.Committers), turn: make(chan context.Context, 1), shelf: newShelf(c.FlushCount),
	}
	var err error
	in.metrics, err = newMetrics(d.Registry, func() float64 { return float64(len(in.queue)) }, in.shelf.size)
	if err != nil {
		return nil, fmt.Errorf("intake: %w", err)
	}
	return in, nil
}

// Full reports whether there is no room for another request.
func (in *Intake) Full() bool { return len(in.queue) == cap(in.queue) || in.shelf.full() }

// Run commits what comes until ctx ends. Then it takes nothing more, commits what waits and what
// was accepted, to the drain deadline, and refuses the rest.
func (in *Intake) Run(ctx context.Context) error {
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	for range in.config.Committers {
		in.working.Go(in.commitQueue)
	}
	if in.config.Mode == ModeAsync {
		in.shelf.open()
		in.working.Go(func() { in.flushShelf(work) })
	}
	in.turn <- work
	<-ctx.Done()
	deadline := time.AfterFunc(in.config.Drain, cancel)
	defer deadline.Stop()
	in.shelf.close()
	in.stop()
	in.working.Wait()
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

// submit admits the job and sees it through alone.
func (in *Intake) submit(ctx context.Context, j *job, size int) (result, error) {
	if err := in.deps.Admit(); err != nil {
		in.metrics.refuse(err, 1)
		return result{}, err
	}
	if err := in.do(ctx, newRequest(size, j)); err != nil {
		return result{}, err
	}
	return j.result, j.result.err
}

// do sees to it that each job of the request has a result. An error means that none has.
func (in *Intake) do(ctx context.Context, r *request) error {
	if in.alone(r) {
		return nil
	}
	if err := in.enqueue(r); err != nil {
		in.metrics.refuse(err, len(r.jobs))
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, in.config.Wait)
	defer cancel()
	select {
	case <-r.done:
	case <-ctx.Done():
		if r.state.CompareAndSwap(waiting, abandoned) {
			in.metrics.refuse(ErrBusy, len(r.jobs))
			return fmt.Errorf("%w: %w", ErrBusy, ctx.Err())
		}
		// A transaction has it. That is short, and only its end tells what became of the jobs.
		<-r.done
	}
	return nil
}

// alone commits the request here and now if nothing waits and nobody commits.
func (in *Intake) alone(r *request) bool {
	if len(in.turn) == 0 || !in.join() {
		return false
	}
	defer in.working.Done()
	select {
	case in.slots <- struct{}{}:
		defer func() { <-in.slots }()
	default:
		return false
	}
	select {
	case work := <-in.turn:
		if in.returning.expected > 1 {
			in.turn <- work
			return false
		}
		in.commitInTurn(work, []*request{r})
		return true
	default:
		return false
	}
}

// join makes the stop wait for a request that may commit by itself, unless the stop has begun or others wait.
func (in *Intake) join() bool {
	in.mu.RLock()
	defer in.mu.RUnlock()
	if in.stopped || len(in.queue) > 0 {
		return false
	}
	in.working.Add(1)
	return true
}

func (in *Intake) enqueue(r *request) error {
	in.mu.RLock()
	defer in.mu.RUnlock()
	if in.stopped {
		return ErrStopping
	}
	select {
	case in.queue <- r:
		return nil
	default:
		return ErrBusy
	}
}
