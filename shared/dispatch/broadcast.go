package dispatch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// StepError is the failure of one handler of a broadcast.
type StepError struct {
	Step int // 1 is the first handler
	Err  error
}

func (e *StepError) Error() string { return fmt.Sprintf("handler %d: %v", e.Step, e.Err) }
func (e *StepError) Unwrap() error { return e.Err }

// broadcast is the identity of one Sequential or Parallel. One that is to stand
// at two places of a tree is made twice, or a retry would take them for one.
type broadcast struct{ all []int }

func newBroadcast(handlers int) *broadcast {
	b := &broadcast{make([]int, handlers)}
	for i := range b.all {
		b.all[i] = i
	}
	return b
}

// Sequential gives each message to one handler after the other, in this order.
// When one fails the later ones do not run. A retry within the delivery resumes
// at the one that failed.
func Sequential[T any](handlers ...Handler[T]) Handler[T] {
	handlers = slices.Clone(handlers)
	b := newBroadcast(len(handlers))
	return func(ctx context.Context, message T) error {
		d := deliveryOf(ctx)
		rest := d.rest(b)
		for n, i := range rest {
			err := context.Cause(ctx)
			if err == nil {
				err = call(ctx, handlers[i], message)
			}
			if err != nil {
				d.keep(b, rest[n:])
				return &StepError{i + 1, err}
			}
		}
		d.keep(b, nil)
		return nil
	}
}

// Parallel gives each message to all handlers at once and waits for all. It
// returns every failure, joined, as StepErrors in the order of the handlers. A
// retry within the delivery runs only those that failed.
func Parallel[T any](handlers ...Handler[T]) Handler[T] {
	handlers = slices.Clone(handlers)
	b := newBroadcast(len(handlers))
	return func(ctx context.Context, message T) error {
		d := deliveryOf(ctx)
		rest := d.rest(b)
		errs := make([]error, len(rest))
		var running sync.WaitGroup
		for n, i := range rest {
			running.Go(func() { errs[n] = call(ctx, handlers[i], message) })
		}
		running.Wait()
		var open []int
		var failed []error
		for n, i := range rest {
			if errs[n] != nil {
				open = append(open, i)
				failed = append(failed, &StepError{i + 1, errs[n]})
			}
		}
		d.keep(b, open)
		return errors.Join(failed...)
	}
}
