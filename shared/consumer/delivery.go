package consumer

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/failpoint"
	"github.com/pillarbox/pillarbox/shared/logs"
)

// Delivery is what becomes of an event when something ends in the middle of it. A crash between the effect and the
// acknowledgement, or before both:
//
//	policy            after the effect         before it       what fails             order, with Config.Ordered
//	EffectivelyOnce   known by its lane        comes again     parked; dead letter    by version
//	AtLeastOnce       takes effect again       comes again     parked; dead letter    as it comes
//	AtMostOnce        not again                lost            lost                   as it comes
//
// Without lanes an ordered effect is called for each event alone, and for two versions of one order at a time.
// Changing from EffectivelyOnce is possible at any time: what waits takes effect without its predecessor. Changing back
// finds lanes that know nothing of the time between: orders that went on then wait as gaps, until a person
// lets them go on. Nothing is lost in either direction but what AtMostOnce loses.
type Delivery string

// The policies.
const (
	// EffectivelyOnce: an event may be delivered more than once and takes effect once.
	EffectivelyOnce Delivery = "effectively-once"
	// AtLeastOnce: no lanes, so that nobody waits for anybody; an effect that cannot bear it must recognise events itself.
	AtLeastOnce Delivery = "at-least-once"
	// AtMostOnce: the acknowledgement comes before the effect, with the broker's word that it has it. What a crash or a failure
	// meets is lost; failures are logged and counted as lost. It holds for one publish of an event: a refill after
	// the broker lost its stream publishes events again.
	AtMostOnce Delivery = "at-most-once"
)

// Valid reports whether d is one of the policies; empty is the default.
func (d Delivery) Valid() bool {
	return slices.Contains([]Delivery{"", EffectivelyOnce, AtLeastOnce, AtMostOnce}, d)
}

// confirmTimeout is how long the broker has to say that it has an acknowledgement.
const confirmTimeout = 2 * time.Second

// acknowledgeFirst returns the items whose messages the broker will give to nobody any more. The others may come
// again, or not.
func (c *Consumer) acknowledgeFirst(ctx context.Context, items []*item) []*item {
	if c.halted(ctx) {
		c.giveBack(ctx, items)
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, confirmTimeout)
	defer cancel()
	errs := make([]error, len(items))
	var asking sync.WaitGroup
	for n, i := range items {
		asking.Go(func() {
			for _, m := range i.copies {
				errs[n] = errors.Join(errs[n], broker.Confirm(ctx, m))
			}
			i.gone = errs[n] == nil
		})
	}
	asking.Wait()
	ours := items[:0]
	var doubtful []*item
	for _, i := range items {
		if i.gone {
			ours = append(ours, i)
		} else {
			doubtful = append(doubtful, i)
		}
	}
	if len(doubtful) > 0 {
		c.giveBack(ctx, doubtful)
		c.metrics.events(resultUnconfirmed, len(doubtful))
		c.log.WarnContext(ctx, "acknowledgement not confirmed: events come again or are lost",
			logs.Count, len(doubtful), logs.EventID, doubtful[0].ID, logs.Error, errors.Join(errs...))
	}
	failpoint.Hit(c.Name + ".acknowledged_first")
	return ours
}

// lose takes note of events that were acknowledged before something failed, and returns the others.
func (c *Consumer) lose(ctx context.Context, items []*item, cause error) (others []*item) {
	for _, i := range items {
		if !i.gone {
			others = append(others, i)
			continue
		}
		c.metrics.events(resultLost, 1)
		c.log.WarnContext(ctx, "event is lost: it failed after it was acknowledged", logs.EventID, i.ID, logs.EventType, i.Type,
			logs.Key, i.Subject, logs.Version, i.Version, logs.Sequence, i.Sequence, logs.Error, cause)
	}
	return others
}

// committedError is what failed after the effect's commit.
type committedError struct{ err error }

func (e *committedError) Error() string { return e.err.Error() }
func (e *committedError) Unwrap() error { return e.err }

// final reports that a failed group must not be tried again, in parts or as a whole: it took effect, and no lane would tell.
func (c *Consumer) final(err error) bool {
	var after *committedError
	return c.Delivery == AtMostOnce && errors.As(err, &after)
}

// committed marks an error of what comes after the commit.
func committed(err error) error {
	if err == nil {
		return nil
	}
	return &committedError{err}
}
