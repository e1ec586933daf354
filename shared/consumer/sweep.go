package consumer

import (
	"context"
	"fmt"
	"time"

	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/failpoint"
	"github.com/pillarbox/pillarbox/shared/wait"
)

const (
	// sweepRounds bounds how many groups one sweep claims of each kind.
	sweepRounds = 10
	// settleTime is how long a waiting row is left to the group that wrote it or is about to take it along.
	settleTime = time.Second
)

// sweeper looks at the table parked every Sweep, on every replica: a claim
// decides who does what, so the number of replicas changes nothing but who.
// When counting the rows takes long the next look is further away, so that a
// large table is not read all the time.
func (c *Consumer) sweeper(ctx, work context.Context) {
	for {
		pause := c.Sweep
		if on, full := c.pause.state(); !on || full {
			start := time.Now()
			seen, err := look(ctx, c.db.Read(), c.db.Dialect().Now())
			pause = max(pause, 20*time.Since(start))
			if err == nil {
				err = c.sweep(ctx, work, seen)
			}
			if err != nil && ctx.Err() == nil && !isConflict(err) && !c.seat.standsBy() {
				c.stop(ctx, err)
			}
		}
		if !wait.For(ctx, wait.Jitter(pause)) {
			return
		}
	}
}

// sweep runs what is due again and what a crash left, and looks for lost
// events. ctx stops it between groups; the groups themselves run on work.
func (c *Consumer) sweep(ctx, work context.Context, seen snapshot) error {
	c.parked.Store(&seen)
	c.parkedRows.Store(seen.total())
	c.metrics.snapshot(seen)
	if c.seat.standsBy() {
		return nil
	}
	defer c.seat.begin()()
	if seen.rows[stateParked] > 0 {
		if err := c.rounds(ctx, work, c.claimRetries); err != nil {
			return err
		}
	}
	if !c.Ordered {
		if seen.rows[stateWaiting] == 0 {
			return nil
		}
		return c.rounds(ctx, work, c.claimWaiting)
	}
	if seen.rows[stateWaiting] == 0 {
		c.forgetOrphans()
		return nil
	}
	if err := c.rounds(ctx, work, c.claimLeftovers); err != nil {
		return err
	}
	return c.findOrphans(ctx, work)
}

type claim func(ctx context.Context, tx *database.Tx) ([]*item, []unreadable, error)

func (c *Consumer) rounds(ctx, work context.Context, take claim) error {
	for range sweepRounds {
		if ctx.Err() != nil || c.halted(work) {
			return nil
		}
		var items []*item
		var bad []unreadable
		err := c.db.Tx(ctx, func(ctx context.Context, tx *database.Tx) (err error) {
			items, bad, err = take(ctx, tx)
			return err
		})
		if err != nil {
			return err
		}
		if err := c.buryRows(work, bad); err != nil {
			return err
		}
		if len(items) == 0 {
			return nil
		}
		failpoint.Hit(c.Name + ".sweep_claimed")
		for _, i := range items {
			i.retry = true
		}
		c.handle(work, batch{items: items})
		if len(items) < c.Batch {
			return nil
		}
	}
	return nil
}

// claimRetries takes parked events whose time has come. A claim ends by itself,
// after any group that could still work on it.
func (c *Consumer) claimRetries(ctx context.Context, tx *database.Tx) ([]*item, []unreadable, error) {
	now := tx.Dialect().Now()
	return storedItems(ctx, tx, `
		WITH due AS MATERIALIZED (
			SELECT event_id AS id FROM parked
			WHERE state = 'parked' AND next_attempt_at <= `+now+` AND claimed_until <= `+now+`
			ORDER BY next_attempt_at LIMIT $1`+tx.Dialect().SkipLocked()+`)
		UPDATE parked SET claimed_until = `+now+` + $2 WHERE event_id IN (SELECT id FROM due)
		RETURNING `+storedColumns, c.Batch, c.claimTime())
}

// claimLeftovers takes waiting events whose predecessor took effect, or that took effect themselves
// while their work was not finished: a crash came between.
func (c *Consumer) claimLeftovers(ctx context.Context, tx *database.Tx) ([]*item, []unreadable, error) {
	now := tx.Dialect().Now()
	return storedItems(ctx, tx, `
		WITH due AS MATERIALIZED (
			SELECT p.event_id AS id FROM parked p JOIN lanes l ON l.order_id = p.order_id
			WHERE p.state = 'waiting' AND p.version <= l.version + 1 AND p.claimed_until <= `+now+`
				AND p.created_at <= `+now+` - $3
			ORDER BY p.order_id, p.version LIMIT $1`+tx.Dialect().SkipLocked()+`)
		UPDATE parked SET claimed_until = `+now+` + $2 WHERE event_id IN (SELECT id FROM due)
		RETURNING `+storedColumns, c.Batch, c.claimTime(), settleTime.Microseconds())
}

// claimWaiting takes all waiting events: they are from when the consumer kept an order, and nothing waits any more.
func (c *Consumer) claimWaiting(ctx context.Context, tx *database.Tx) ([]*item, []unreadable, error) {
	now := tx.Dialect().Now()
	return storedItems(ctx, tx, `
		WITH due AS MATERIALIZED (
			SELECT event_id AS id FROM parked WHERE state = 'waiting' AND claimed_until <= `+now+`
			ORDER BY order_id, version LIMIT $1`+tx.Dialect().SkipLocked()+`)
		UPDATE parked SET claimed_until = `+now+` + $2 WHERE event_id IN (SELECT id FROM due)
		RETURNING `+storedColumns, c.Batch, c.claimTime())
}

func (c *Consumer) claimTime() int64 { return (2 * c.Timeout).Microseconds() }

// release ends claims whose work could not be done now.
func (c *Consumer) release(ctx context.Context, ids []string) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	condition, arg := c.db.Dialect().AnyOf(1, ids)
	return c.db.Tx(ctx, func(ctx context.Context, tx *database.Tx) error {
		if _, err := tx.ExecContext(ctx, `UPDATE parked SET claimed_until = 0 WHERE event_id `+condition, arg); err != nil {
			return fmt.Errorf("release claims: %w", err)
		}
		return nil
	})
}
