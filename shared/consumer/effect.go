package consumer

import (
	"context"

	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/events"
)

// Event is a decoded event with the bytes it came in.
type Event struct {
	events.Event
	Raw      []byte
	Sequence uint64 // in the stream; 0 when unknown
}

// Group is what one transaction is about.
type Group struct {
	// Due events take effect now, those of one order in version order without gaps.
	Due []Event
	// Duplicates took effect earlier (their version is at or below the lane); an effect that finishes
	// work after the commit makes sure that it is finished. Empty for unordered consumers.
	Duplicates []Event
}

// Effect is what a service does with events.
type Effect interface {
	// Prepare does the slow part for events that will probably be due, before the
	// transaction and without the database. An error fails the whole group (it is then done again one by one).
	Prepare(ctx context.Context, group Group) (Work, error)
	// Probe reports whether what the effect depends on (other than the database) is usable; called while the consumer is paused.
	Probe(ctx context.Context) error
}

// Work is one prepared group. After Prepare exactly one of Done and Discard is called, except after an unknown commit outcome (neither).
type Work interface {
	// Apply makes the effects within the transaction. Its group's Due is what is really due: a subset of what was
	// prepared, possibly empty. Its Duplicates may hold events that were prepared as due (another replica was
	// quicker) or not at all.
	Apply(ctx context.Context, tx *database.Tx, group Group) error
	// Done runs after the commit and before the acknowledgement. An error pauses the consumer, and the events come
	// again as duplicates until Done has succeeded.
	Done(ctx context.Context) error
	// Discard runs when the transaction certainly did not happen.
	Discard(ctx context.Context)
}

// Apply adapts a function that only works within the transaction.
func Apply(do func(ctx context.Context, tx *database.Tx, due []Event) error) Effect {
	return &inTx{do}
}

// inTx is both the effect and its work: it has nothing to prepare and nothing
// to finish, so any event may become due in the transaction, and the rows of
// parked events go in it too.
type inTx struct {
	do func(ctx context.Context, tx *database.Tx, due []Event) error
}

func (e *inTx) Prepare(context.Context, Group) (Work, error) { return e, nil }

func (e *inTx) Probe(context.Context) error { return nil }

func (e *inTx) Apply(ctx context.Context, tx *database.Tx, group Group) error {
	if len(group.Due) == 0 {
		return nil
	}
	return e.do(ctx, tx, group.Due)
}

func (e *inTx) Done(context.Context) error { return nil }

func (e *inTx) Discard(context.Context) {}
