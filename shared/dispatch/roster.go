package dispatch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// Errors of strategies whose workers join and leave.
var (
	// ErrJoined: a worker of this name is registered, or has not ended its last message yet.
	ErrJoined = errors.New("a worker of this name has joined")
	// ErrNoWorker: no worker is registered, or none is available now.
	ErrNoWorker = errors.New("no worker is available")

	errElsewhere = errors.New("worker became unavailable")
)

// Worker is what a roster says of one.
type Worker struct {
	Name    string
	Pending int // messages it has or that wait for it
	// Available is false while a worker that failed cools down or is overdue.
	Available bool
}

// worker has one message at a time. What changes is guarded by its roster's lock.
type worker[T any] struct {
	name   string
	seed   uint64 // of its name, for ByKey
	handle Handler[T]
	busy   chan struct{} // holds a token while it has a message

	pending int           // messages it has or that wait for it
	gone    chan struct{} // set when it leaves, closed when nothing is pending any more
	health  health        // of a RoundRobin
}

// roster is who is registered:
//
//	        join           leave                      nothing pending
//	absent ──────▶ member ───────▶ leaving (pending) ────────────────▶ absent
//
// No name is on it twice, not even while it is leaving.
type roster[T any] struct {
	mu      sync.Mutex // guards the rest and the workers
	members []*worker[T]
	leaving []*worker[T]
}

func (r *roster[T]) join(name string, handle Handler[T]) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	named := func(w *worker[T]) bool { return w.name == name }
	if slices.ContainsFunc(r.members, named) || slices.ContainsFunc(r.leaving, named) {
		return fmt.Errorf("%w: %q", ErrJoined, name)
	}
	if len(r.members) == MostWorkers {
		return fmt.Errorf("more than %d workers", MostWorkers)
	}
	r.members = append(r.members, &worker[T]{
		name: name, seed: mix(hash(name)), handle: handle, busy: make(chan struct{}, 1), health: newHealth(),
	})
	return nil
}

// leave takes a worker off the list at once, tells where it stood, and waits
// until nothing is pending for it.
func (r *roster[T]) leave(ctx context.Context, name string, stood func(index int)) error {
	r.mu.Lock()
	i := slices.IndexFunc(r.members, func(w *worker[T]) bool { return w.name == name })
	if i < 0 {
		r.mu.Unlock()
		return fmt.Errorf("%w: %q is not registered", ErrNoWorker, name)
	}
	w := r.members[i]
	r.members = slices.Delete(r.members, i, i+1)
	stood(i)
	if w.pending > 0 {
		w.gone = make(chan struct{})
		r.leaving = append(r.leaving, w)
	}
	w.health.leave()
	gone := w.gone
	r.mu.Unlock()
	if gone == nil {
		return nil
	}
	select {
	case <-gone:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("worker %q has not ended its messages: %w", name, context.Cause(ctx))
	}
}

// settled ends what was pending for w. The caller holds the lock.
func (r *roster[T]) settled(w *worker[T], messages int) {
	w.pending -= messages
	if w.pending == 0 && w.gone != nil {
		close(w.gone)
		r.leaving = slices.DeleteFunc(r.leaving, func(l *worker[T]) bool { return l == w })
	}
}

// begin waits until w has no other message. It returns errElsewhere when away is closed first.
func (w *worker[T]) begin(ctx context.Context, away <-chan struct{}) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	select { // alone, since a select locks all its channels, and ctx is everybody's
	case w.busy <- struct{}{}:
	default:
		select {
		case w.busy <- struct{}{}:
		case <-away:
			return errElsewhere
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	select {
	case <-away:
		w.end()
		return errElsewhere
	default:
		return nil
	}
}

func (w *worker[T]) end() { <-w.busy }

// queues are the messages of a batch by worker, as chains of indexes: one
// allocation for all of them instead of one slice each.
type queues[T any] struct {
	heads []queue[T]
	next  []int // the index behind each; -1 is the end
}

type queue[T any] struct {
	worker      *worker[T]
	first, last int
}

func (q *queues[T]) add(w *worker[T], i int) {
	q.next[i] = -1
	for n := range q.heads {
		if h := &q.heads[n]; h.worker == w {
			q.next[h.last], h.last = i, i
			return
		}
	}
	q.heads = append(q.heads, queue[T]{w, i, i})
}

// run calls do for each worker's chain, side by side, and waits for all.
func (q *queues[T]) run(do func(queue[T])) {
	if len(q.heads) == 0 {
		return
	}
	var others sync.WaitGroup
	for _, h := range q.heads[1:] {
		others.Go(func() { do(h) })
	}
	do(q.heads[0])
	others.Wait()
}
