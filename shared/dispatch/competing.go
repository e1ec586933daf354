package dispatch

import (
	"context"
	"fmt"
	"sync"
)

// MostWorkers is the most workers that a strategy can have.
const MostWorkers = 1024

// Competing has N equal workers: whichever is free first takes the next
// message. N can be changed at any time without loss: a worker too many ends
// after the message that it has.
type Competing[T any] struct {
	hire func(worker int) Handler[T]
	free chan *rival[T] // longest free first; its capacity is MostWorkers, so giving back never waits

	mu      sync.Mutex // guards the rest
	workers int
	present [MostWorkers]bool // who is in free or has a message
}

type rival[T any] struct {
	number int // from 0
	handle Handler[T]
}

// NewCompeting returns a strategy of n workers. hire makes the handler of a
// worker, by its number from 0; workers that share everything get the same one
// (Alike).
func NewCompeting[T any](n int, hire func(worker int) Handler[T]) (*Competing[T], error) {
	c := &Competing[T]{hire: hire, free: make(chan *rival[T], MostWorkers)}
	if err := c.Resize(n); err != nil {
		return nil, err
	}
	return c, nil
}

// Alike gives every worker the same handler.
func Alike[T any](handle Handler[T]) func(worker int) Handler[T] {
	return func(int) Handler[T] { return handle }
}

// Resize changes the number of workers. It does not wait: workers too many that
// have a message end it.
func (c *Competing[T]) Resize(n int) error {
	if n < 1 || n > MostWorkers {
		return fmt.Errorf("competing workers must be 1 to %d, not %d", MostWorkers, n)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.workers = n
	for i := range n {
		if !c.present[i] {
			c.present[i] = true
			c.free <- &rival[T]{i, c.hire(i)}
		}
	}
	return nil
}

// Workers is the number of workers last asked for.
func (c *Competing[T]) Workers() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.workers
}

// Handle waits for a free worker.
func (c *Competing[T]) Handle(ctx context.Context, message T) error {
	w, err := c.take(ctx)
	if err != nil {
		return err
	}
	defer c.give(w)
	return call(ctx, w.handle, message)
}

// HandleBatch begins the messages in their order, each as soon as a worker is
// free; they end in any order. A failure of one is nothing to the others.
func (c *Competing[T]) HandleBatch(ctx context.Context, messages []T) []error {
	ctx = apart(ctx, len(messages))
	errs := make(results, len(messages))
	var running sync.WaitGroup
	for i, message := range messages {
		w, err := c.take(ctx)
		if err != nil {
			errs[i] = err
			continue
		}
		running.Add(1) // not Go, which would cost another allocation per message
		go func() {
			defer running.Done()
			defer c.give(w)
			errs[i] = call(ctx, w.handle, message)
		}()
	}
	running.Wait()
	return errs.orNil()
}

// take waits for the worker that has been free for the longest time.
func (c *Competing[T]) take(ctx context.Context) (*rival[T], error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	for {
		var w *rival[T]
		select { // alone, since a select locks all its channels, and ctx is everybody's
		case w = <-c.free:
		default:
			select {
			case w = <-c.free:
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
		if c.stays(w) {
			return w, nil
		}
	}
}

func (c *Competing[T]) give(w *rival[T]) {
	if c.stays(w) {
		c.free <- w
	}
}

// stays reports whether w is still wanted; otherwise it is gone.
func (c *Competing[T]) stays(w *rival[T]) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w.number < c.workers {
		return true
	}
	c.present[w.number] = false
	return false
}
