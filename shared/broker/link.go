package broker

import (
	"context"
	"errors"
	"sync"
)

// errAnswerLost means that the connection broke while an answer was awaited: whether the broker
// has the message is not known.
var errAnswerLost = errors.New("the connection broke before the broker answered")

// link is one unbroken stretch of a connection. The answers to what was sent in it are lost
// with it, so there is no use in waiting for them until the time-out.
type link struct {
	mu     sync.Mutex // guards ctx and cancel
	ctx    context.Context
	cancel context.CancelCauseFunc
}

func newLink() *link {
	l := &link{}
	l.ctx, l.cancel = context.WithCancelCause(context.Background())
	return l
}

// lost ends the stretch and begins the next one.
func (l *link) lost() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cancel(errAnswerLost)
	l.ctx, l.cancel = context.WithCancelCause(context.Background())
}

// bind returns a context that also ends, with errAnswerLost as its cause, when the stretch does.
func (l *link) bind(ctx context.Context) (context.Context, context.CancelFunc) {
	l.mu.Lock()
	stretch := l.ctx
	l.mu.Unlock()
	ctx, cancel := context.WithCancelCause(ctx)
	unbind := context.AfterFunc(stretch, func() { cancel(errAnswerLost) })
	return ctx, func() { unbind(); cancel(nil) }
}
