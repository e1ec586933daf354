package dispatch

import (
	"context"
	"time"
)

// RoundRobinConfig says when a worker is unavailable; zero values mean the defaults.
type RoundRobinConfig struct {
	CoolDown time.Duration // time without messages after a failure. Default 5 s
	Timeout  time.Duration // of one handling; 0: only what the context says
	// Fault tells whether an error is the worker's fault and not the message's. Default: every error,
	// except that the caller's context ended.
	Fault func(error) bool
}

// RoundRobin gives messages to its workers in a fixed turn, the order in which
// they joined; a busy worker is waited for. A worker that failed or timed out
// is unavailable: its turn is skipped, those who wait for it take another turn,
// and after a cool-down it is tried again:
//
//	            failed                    cool-down over
//	available ─────────▶ cooling down ───────────────────▶ available
//	     │ timed out                ▲
//	     ▼                          │ returned
//	  overdue ──────────────────────┘
//
// The failure itself is returned: whether the message may be handled again is
// the caller's decision. When every worker is unavailable the answer is
// ErrNoWorker, at once.
type RoundRobin[T any] struct {
	config RoundRobinConfig
	roster[T]
	turn int // index of the member whose turn it is; guarded by the roster's lock
}

// NewRoundRobin returns a strategy without workers.
func NewRoundRobin[T any](c RoundRobinConfig) *RoundRobin[T] {
	if c.CoolDown <= 0 {
		c.CoolDown = 5 * time.Second
	}
	if c.Fault == nil {
		c.Fault = func(error) bool { return true }
	}
	return &RoundRobin[T]{config: c}
}

// Join registers a worker at the end of the turn. A worker that left is new when it joins again.
func (r *RoundRobin[T]) Join(name string, handle Handler[T]) error { return r.join(name, handle) }

// Leave takes a worker out of the turn: who waits for it goes to others. It
// waits until the worker's last message is over, so it must not be called from
// the worker itself.
func (r *RoundRobin[T]) Leave(ctx context.Context, name string) error {
	return r.leave(ctx, name, func(index int) {
		if index < r.turn {
			r.turn-- // the turn stays with whom it was
		}
	})
}

// Workers lists the registered workers in the order of their turn.
func (r *RoundRobin[T]) Workers() []Worker {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	list := make([]Worker, len(r.members))
	for i, w := range r.members {
		list[i] = Worker{Name: w.name, Pending: w.pending, Available: w.health.available(now)}
	}
	return list
}

// Handle waits for the worker whose turn it is.
func (r *RoundRobin[T]) Handle(ctx context.Context, message T) error {
	r.mu.Lock()
	w, away := r.next(time.Now())
	r.mu.Unlock()
	return r.handle(ctx, w, away, message)
}

// HandleBatch gives out the turns in the order of the messages; each worker
// handles its own one after another.
func (r *RoundRobin[T]) HandleBatch(ctx context.Context, messages []T) []error {
	ctx = apart(ctx, len(messages))
	failed := batchResults{n: len(messages)}
	chains := queues[T]{next: make([]int, len(messages))}
	aways := make([]<-chan struct{}, len(messages))
	r.mu.Lock()
	now := time.Now()
	for i := range messages {
		w, away := r.next(now)
		if w == nil {
			failed.set(i, ErrNoWorker)
			continue
		}
		aways[i] = away
		chains.add(w, i)
	}
	r.mu.Unlock()
	chains.run(func(q queue[T]) {
		for i := q.first; i >= 0; i = chains.next[i] {
			if err := r.handle(ctx, q.worker, aways[i], messages[i]); err != nil {
				failed.set(i, err)
			}
		}
	})
	return failed.errs
}

// next gives out a turn: the worker, and what is closed when it becomes
// unavailable. The caller holds the lock.
func (r *RoundRobin[T]) next(now time.Time) (*worker[T], <-chan struct{}) {
	for range r.members {
		w := r.members[r.turn%len(r.members)]
		r.turn = (r.turn + 1) % len(r.members)
		if away, ok := w.health.admit(now); ok {
			w.pending++
			return w, away
		}
	}
	return nil, nil
}

// handle gives the message to w or, when w becomes unavailable first, to
// whoever's turn it is then.
func (r *RoundRobin[T]) handle(ctx context.Context, w *worker[T], away <-chan struct{}, message T) error {
	for w != nil {
		err := r.try(ctx, w, away, message)
		if err != errElsewhere {
			return err
		}
		r.mu.Lock()
		w, away = r.next(time.Now())
		r.mu.Unlock()
	}
	return ErrNoWorker
}

func (r *RoundRobin[T]) try(ctx context.Context, w *worker[T], away <-chan struct{}, message T) error {
	if err := w.begin(ctx, away); err != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.settled(w, 1)
		return err
	}
	defer w.end() // after its state is known to those who wait for it
	if r.config.Timeout <= 0 {
		err := call(ctx, w.handle, message)
		r.returned(ctx, w, err)
		return err
	}
	limited, cancel := context.WithTimeout(ctx, r.config.Timeout)
	defer cancel()
	over := false // guarded by the lock
	// At the deadline nobody waits for the worker any more, whether it listens to its context or not.
	context.AfterFunc(limited, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if !over && ctx.Err() == nil {
			w.health.overdue()
		}
	})
	err := call(limited, w.handle, message)
	r.mu.Lock()
	over = true
	r.mu.Unlock()
	r.returned(ctx, w, err)
	return err
}

// returned judges the worker by what it returned. The end of the caller's own
// context is nobody's fault.
func (r *RoundRobin[T]) returned(ctx context.Context, w *worker[T], err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w.health.late || err != nil && ctx.Err() == nil && r.config.Fault(err) {
		w.health.coolDown(time.Now().Add(r.config.CoolDown))
	}
	r.settled(w, 1)
}
