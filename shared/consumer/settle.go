package consumer

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/logs"
	"github.com/pillarbox/pillarbox/shared/wait"
)

// handle brings a batch to an end: when it returns each message is acknowledged
// or given back. Then it goes on with the waiting rows that have become due,
// for as long as nobody wants to stop: they are durable, and the sweep finds
// what is left.
func (c *Consumer) handle(ctx context.Context, b batch) {
	next := c.settle(ctx, b)
	for len(next) > 0 && !c.halted(ctx) && !c.stopping.Load() {
		next = c.settle(ctx, batch{orders: next})
	}
}

// halted reports that no work should begin now.
func (c *Consumer) halted(ctx context.Context) bool {
	on, full := c.pause.state()
	return ctx.Err() != nil || on && !full || c.seat.standsBy()
}

// settle runs a batch, and after a failure its parts: order by order, then
// event by event, so that one bad event costs the others nothing. It returns
// the orders whose waiting rows have become due.
func (c *Consumer) settle(ctx context.Context, b batch) []string {
	if c.halted(ctx) {
		c.giveBack(ctx, c.lose(ctx, b.items, errNotNow))
		return nil
	}
	if ackFirst {
		ackAtOnce(b.items)
	}
	res, items, err := c.attempt(ctx, b)
	if err == nil {
		c.accept(ctx, res)
		return res.next
	}
	switch {
	case c.interrupted(ctx, err), c.final(err):
		c.giveBack(ctx, c.lose(ctx, items, err))
		return nil
	case len(items) == 0: // nothing but the look at waiting rows failed
		c.stop(ctx, err)
		return nil
	case len(items) == 1:
		return c.failed(ctx, items[0], err)
	}
	var next []string
	for _, part := range split(items, c.Ordered) {
		next = append(next, c.settle(ctx, batch{items: part, closed: true})...)
	}
	return sorted(next)
}

// attempt runs the batch, again when it lost a conflict with another transaction.
func (c *Consumer) attempt(ctx context.Context, b batch) (result, []*item, error) {
	start := time.Now()
	for try := 1; ; try++ {
		res, items, err := c.run(ctx, b)
		if err == nil {
			c.metrics.group(res.due, len(items), time.Since(start))
		}
		if Classify(err) != Transient || !isConflict(err) || try == conflictTries || !wait.For(ctx, conflictPause(try)) {
			return res, items, err
		}
	}
}

// interrupted deals with errors that say nothing about the events: they burn no
// attempt, and everything goes back.
func (c *Consumer) interrupted(ctx context.Context, err error) bool {
	switch {
	case ctx.Err() != nil: // the drain deadline: not even a pause is due
		return true
	case c.overtaken(ctx, err):
		return true
	case errors.Is(err, database.ErrCommitUnknown), Classify(err) == Outage:
		c.stop(ctx, err)
		return true
	}
	return false
}

// overtaken counts a write that was refused because another replica leads: no fault of the events, and no outage.
func (c *Consumer) overtaken(ctx context.Context, err error) bool {
	if !c.seat.overtaken(ctx, err) {
		return false
	}
	c.metrics.conflicts.Inc()
	c.log.WarnContext(ctx, "write refused: another replica leads", logs.Term, c.seat.under)
	return true
}

// split divides the items of a failed group: by order, and one order by event. The orders come in any order, so that
// many bad ones together do not stand before the good ones each time: one that succeeds tells poison from an outage.
func split(items []*item, ordered bool) [][]*item {
	var parts [][]*item
	for _, i := range items {
		if n := len(parts); ordered && n > 0 && parts[n-1][0].Subject == i.Subject {
			parts[n-1] = append(parts[n-1], i)
		} else {
			parts = append(parts, []*item{i})
		}
	}
	if len(parts) == 1 && len(items) > 1 {
		return split(items, false)
	}
	turn := map[string]uint64{}
	for _, p := range parts {
		if turn[p[0].Subject] == 0 {
			turn[p[0].Subject] = rand.Uint64()
		}
	}
	slices.SortStableFunc(parts, func(a, b []*item) int { return cmp.Compare(turn[a[0].Subject], turn[b[0].Subject]) })
	return parts
}

// accept acknowledges what a committed group settled.
func (c *Consumer) accept(ctx context.Context, res result) {
	for _, items := range [][]*item{res.due, res.duplicates, res.wait, res.held} {
		ack(items)
	}
	effects := len(seen(res.due))
	if effects > 0 {
		c.streak.succeed()
	}
	c.metrics.events(resultDone, effects)
	c.metrics.events(resultEarly, len(res.due)-effects)
	c.metrics.events(resultDuplicate, len(res.duplicates)+len(res.held))
	c.metrics.events(resultWaiting, len(res.wait))
	if len(res.refused) > 0 {
		c.giveBack(ctx, res.refused)
		c.stop(ctx, c.full())
	}
}

// failed records the failure of a single event. It returns the order when that goes on without the event.
func (c *Consumer) failed(ctx context.Context, i *item, cause error) (next []string) {
	if isConflict(cause) && Classify(cause) == Transient {
		c.giveBack(ctx, c.lose(ctx, []*item{i}, cause)) // somebody holds the lane for long; the event is not to blame
		return nil
	}
	suspect, down := c.suspect(i, cause)
	if down != nil {
		defer c.stop(ctx, down)
	}
	if len(c.lose(ctx, []*item{i}, cause)) == 0 {
		return nil
	}
	v, err := c.record(ctx, i, cause, suspect)
	if err != nil {
		c.giveBack(ctx, []*item{i})
		if ctx.Err() == nil && !isConflict(err) && !c.overtaken(ctx, err) {
			// What cannot even be written down is no fault of the event.
			c.stop(ctx, err)
		}
		return nil
	}
	ack([]*item{i})
	c.parkedRows.Add(v.rows)
	log := c.log.With(logs.EventID, i.ID, logs.EventType, i.Type, logs.Key, i.Subject, logs.Version, i.Version,
		logs.Attempt, v.attempts, logs.Error, cause)
	var panicked *panicError
	if errors.As(cause, &panicked) {
		log = log.With(slog.String("stack", string(panicked.stack)))
	}
	switch v.state {
	case stateParked:
		c.metrics.events(resultParked, 1)
		log.WarnContext(ctx, "event failed and is parked", "retry_in", v.wait)
	case stateDead:
		c.metrics.events(resultDead, 1)
		log.ErrorContext(ctx, "event is a dead letter", "skipped", v.skipped)
	}
	if v.skipped {
		c.metrics.events(resultSkipped, 1)
		return []string{i.Subject}
	}
	return nil
}

// stop pauses the consumer for everyone.
func (c *Consumer) stop(ctx context.Context, cause error) {
	c.pause.begin(ctx, cause, errors.Is(cause, errFull))
}

func ack(items []*item) {
	for _, i := range items {
		for _, m := range i.copies {
			m.Ack()
		}
	}
}

// giveBack returns messages to the broker and claims to the table.
func (c *Consumer) giveBack(ctx context.Context, items []*item) {
	var claimed []string
	for _, i := range items {
		for _, m := range i.copies {
			m.Nack()
		}
		if i.retry {
			claimed = append(claimed, i.ID)
		}
	}
	if len(claimed) == 0 {
		return
	}
	if err := c.release(context.WithoutCancel(ctx), claimed); err != nil {
		c.log.DebugContext(ctx, "claims run out by themselves", logs.Count, len(claimed), logs.Error, err)
	}
}
