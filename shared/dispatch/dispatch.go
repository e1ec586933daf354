// Package dispatch is how messages reach handlers: every strategy is a
// combinator that takes handlers and gives one back, so that whoever pulls
// messages never changes.
//
//	to every handler   Sequential, Parallel
//	to one worker      Single, Competing, RoundRobin, ByKey
//	around a handler   Retry, Measure
//	one or many        Each, One
//
// Nothing here owns a goroutine, a queue or a connection: messages in flight
// are those whose callers wait, so the caller bounds them. Who calls only when
// it has a free hand stops pulling while all workers are busy and goes on as
// soon as one is free.
//
// It promises that a handling happens once per call, or that the call returns
// why it did not; that a worker has one message at a time; and that a panic of
// a handler is the error of its message, for any other message goes on. It does
// not promise anything across calls: retry and memory that outlive a crash are
// the caller's (package consumer). A crash leaves nothing behind here.
package dispatch

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
)

// Handler handles one message.
type Handler[T any] func(ctx context.Context, message T) error

// BatchHandler handles messages together. It returns nil when all is well,
// otherwise one error per message, nil for those that went well.
type BatchHandler[T any] func(ctx context.Context, messages []T) []error

// Strategy gives each message to one of its workers. Both methods may be called
// from many goroutines at once and are handlers themselves.
type Strategy[T any] interface {
	// Handle is a Handler: it waits for a worker and returns what the worker did.
	Handle(ctx context.Context, message T) error
	// HandleBatch is a BatchHandler: it spreads the messages over the workers and waits for all.
	HandleBatch(ctx context.Context, messages []T) []error
}

// ErrPredecessor is the error of a message that was not handled because an
// earlier one of the same batch, which it must follow, failed.
var ErrPredecessor = errors.New("an earlier message failed")

// Each makes a BatchHandler that handles the messages one after another, each whatever became of the others.
func Each[T any](next Handler[T]) BatchHandler[T] {
	return func(ctx context.Context, messages []T) []error {
		ctx = apart(ctx, len(messages))
		var failed results
		for i, message := range messages {
			failed.set(i, len(messages), call(ctx, next, message))
		}
		return failed
	}
}

// One makes a Handler that handles a message as a batch of one.
func One[T any](next BatchHandler[T]) Handler[T] {
	return func(ctx context.Context, message T) error {
		switch errs := next(ctx, []T{message}); len(errs) {
		case 0:
			return nil
		case 1:
			return errs[0]
		default:
			return fmt.Errorf("batch handler returned %d errors for one message: %w", len(errs), errors.Join(errs...))
		}
	}
}

// results are the errors of a batch; nil as long as all is well.
type results []error

func (r *results) set(i, n int, err error) {
	if err == nil {
		return
	}
	if *r == nil {
		*r = make([]error, n)
	}
	(*r)[i] = err
}

// orNil is r, or nil when all is well.
func (r results) orNil() []error {
	for _, err := range r {
		if err != nil {
			return r
		}
	}
	return nil
}

// PanicError is the error of a message whose handler panicked.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// call is the only place where a handler is called: it may run in a goroutine
// in which nobody else would catch its panic.
func call[T any](ctx context.Context, handle Handler[T], message T) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{v, debug.Stack()}
		}
	}()
	return handle(ctx, message)
}
