package boot

import (
	"context"
	"errors"
	"fmt"
)

// Stage is one part of a process that runs until its context ends.
type Stage struct {
	Name string
	Run  func(ctx context.Context) error
}

// RunStages runs all stages at once. When ctx ends, or a stage returns by
// itself, it stops the stages one after another in the given order, each only
// after the one before has returned: what takes work in comes first, what work
// depends on last. It returns after the last one, with all their errors.
func RunStages(ctx context.Context, stages ...Stage) error {
	type running struct {
		Stage
		cancel context.CancelFunc
		done   chan struct{}
		err    error
	}
	all := make([]*running, len(stages))
	ended := make(chan string, len(stages))
	// The stages outlive ctx: each ends by its own cancel, in order.
	background := context.WithoutCancel(ctx)
	for i, s := range stages {
		stageCtx, cancel := context.WithCancel(background)
		r := &running{Stage: s, cancel: cancel, done: make(chan struct{})}
		all[i] = r
		go func() {
			defer close(r.done)
			r.err = r.Run(stageCtx)
			ended <- r.Name
		}()
	}

	var early error
	select {
	case <-ctx.Done():
	case name := <-ended:
		early = fmt.Errorf("%s ended by itself", name)
	}
	var errs []error
	for _, r := range all {
		r.cancel()
		<-r.done
		if !onlyCanceled(r.err) {
			errs = append(errs, fmt.Errorf("%s: %w", r.Name, r.err))
		}
	}
	if early != nil && len(errs) == 0 && ctx.Err() == nil {
		return early
	}
	return errors.Join(errs...)
}

// onlyCanceled reports that err is nil or says nothing but that a context ended,
// which is what a stop looks like. Joined with something else, that counts.
func onlyCanceled(err error) bool {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			if !onlyCanceled(e) {
				return false
			}
		}
		return true
	}
	if inner := errors.Unwrap(err); inner != nil {
		return onlyCanceled(inner)
	}
	return err == nil || errors.Is(err, context.Canceled)
}
