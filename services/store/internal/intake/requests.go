package intake

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/pillarbox/pillarbox/services/store/internal/order"
	"github.com/pillarbox/pillarbox/services/store/internal/orderdb"
	"github.com/pillarbox/pillarbox/shared/events"
)

// Trace ties an event to the request that caused it.
type Trace struct {
	CorrelationID string
	Traceparent   string
}

// Keyed is the idempotency key of a request and the request's fingerprint.
type Keyed struct {
	Key         orderdb.Key
	Fingerprint []byte
}

// Answer is the answer to a placement: made now, or the first one of its key again.
type Answer struct {
	OrderID  string
	Body     []byte
	Replayed bool
}

// Place stores a new order. size is roughly what the request takes in memory; keyed is nil
// for a request without an idempotency key.
func (in *Intake) Place(ctx context.Context, p order.Placement, keyed *Keyed, t Trace, size int) (Answer, error) {
	j, err := newPlacing(p, keyed, t)
	if err != nil {
		return Answer{}, err
	}
	r, err := in.submit(ctx, j, size)
	return r.answer, err
}

func newPlacing(p order.Placement, keyed *Keyed, t Trace) (*job, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return nil, fmt.Errorf("new order id: %w", err)
	}
	return &job{placement: &p, eventType: events.TypePlaced, orderID: id.String(), keyed: keyed, trace: t}, nil
}

// Revise changes an order. match says whether the order's version is one that the change was
// made for; nil takes any.
func (in *Intake) Revise(
	ctx context.Context, id string, match func(version int64) bool, r order.Revision, t Trace, size int,
) (order.Order, error) {
	return in.change(ctx, id, events.TypeChanged, t, size,
		func(o order.Order, at time.Time) (order.Order, bool, error) {
			revised, differs, err := o.Revise(r, at)
			// A request that would fail anyway fails for its own reason, not for the version (RFC 9110 section 13.2.1).
			if err == nil && match != nil && !match(o.Version) {
				return o, false, ErrVersion
			}
			return revised, differs, err
		})
}

// Cancel cancels an order. On a cancelled one it does nothing and match does not count: what
// was asked for is so (RFC 9110 section 13.1.1).
func (in *Intake) Cancel(ctx context.Context, id string, match func(version int64) bool, t Trace) (order.Order, error) {
	return in.change(ctx, id, events.TypeCancelled, t, 0,
		func(o order.Order, at time.Time) (order.Order, bool, error) {
			cancelled, differs := o.Cancel(at)
			if differs && match != nil && !match(o.Version) {
				return o, false, ErrVersion
			}
			return cancelled, differs, nil
		})
}

func (in *Intake) change(
	ctx context.Context, id, eventType string, t Trace, size int,
	change func(order.Order, time.Time) (order.Order, bool, error),
) (order.Order, error) {
	r, err := in.submit(ctx, &job{change: change, eventType: eventType, orderID: id, trace: t}, size)
	return r.order, err
}
