package dispatch

import "context"

// Single handles one message at a time, those of a batch in their order. After
// a failure the rest of the batch is not handled (ErrPredecessor), so that no
// message takes effect before one that stands in front of it.
type Single[T any] struct {
	handle Handler[T]
	busy   chan struct{} // holds a token while a call is under way
}

// NewSingle returns a Single.
func NewSingle[T any](handle Handler[T]) *Single[T] {
	return &Single[T]{handle: handle, busy: make(chan struct{}, 1)}
}

// Handle waits until no other message is under way.
func (s *Single[T]) Handle(ctx context.Context, message T) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.leave()
	return call(ctx, s.handle, message)
}

// HandleBatch handles the messages without those of another call in between.
func (s *Single[T]) HandleBatch(ctx context.Context, messages []T) []error {
	ctx = apart(ctx, len(messages))
	var failed results
	err := s.enter(ctx)
	if err == nil {
		defer s.leave()
	}
	for i, message := range messages {
		if err == nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			failed.set(i, len(messages), err)
			continue
		}
		if problem := call(ctx, s.handle, message); problem != nil {
			failed.set(i, len(messages), problem)
			err = ErrPredecessor
		}
	}
	return failed
}

func (s *Single[T]) enter(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	select {
	case s.busy <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *Single[T]) leave() { <-s.busy }
