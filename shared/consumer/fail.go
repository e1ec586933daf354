package consumer

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/failpoint"
	"github.com/pillarbox/pillarbox/shared/wait"
)

// AfterDeath is what an order does when one of its events became a dead letter.
type AfterDeath string

const (
	// Hold: later versions wait until a person or a redrive has settled the letter.
	Hold AfterDeath = "hold"
	// Skip: the lane passes over the event and later versions go on. Its effect never happens here.
	Skip AfterDeath = "skip"
)

// Valid reports whether a is one of the two; empty is the default.
func (a AfterDeath) Valid() bool { return a == "" || a == Hold || a == Skip }

// verdict is what recording a failure came to.
type verdict struct {
	state    string // of the event now: parked, dead, or "" when another replica has recorded it
	attempts int
	wait     time.Duration
	skipped  bool  // the lane went on
	rows     int64 // of parked, more or less than before
}

// record writes down that an event failed, in a transaction that holds its
// lane: parked with one attempt more (none more when the failure is suspected to
// be everybody's), or a dead letter.
//
// An event that the lane has passed is recorded too: it took effect, but its
// work could not be finished. It holds nothing.
func (c *Consumer) record(ctx context.Context, i *item, cause error, suspect bool) (verdict, error) {
	var v verdict
	err := c.again(ctx, func(ctx context.Context, tx *database.Tx) error {
		v = verdict{}
		where := passed
		if err := c.seat.check(ctx, tx); err != nil {
			return err
		}
		if c.Ordered {
			lanes, err := lockLanes(ctx, tx, []string{i.Subject}, nil)
			if err != nil {
				return err
			}
			where = stand(i.Version, lanes[i.Subject])
		}
		before, stands, err := failedBefore(ctx, tx, i)
		if err != nil {
			return err
		}
		if before.attempts > i.attempts {
			return nil // this very attempt was made twice, and counted
		}
		if !stands && int(c.parkedRows.Load()) >= c.ParkedTotal && !c.catchingUp() {
			return c.full()
		}
		if suspect {
			v = verdict{state: stateParked, attempts: before.attempts, wait: wait.Jitter(min(c.MaxBackoff, longestFlap)), rows: fresh(stands)}
			return park(ctx, tx, i, cause, v, before.history)
		}
		v.attempts = before.attempts + 1
		history := remember(before.history, failure{time.Now().UTC(), v.attempts, cause.Error()})
		if Classify(cause) == Permanent || v.attempts >= c.MaxAttempts || i.last {
			v.state = stateDead
			return c.bury(ctx, tx, i, cause, &v, where, stands, history)
		}
		v.state, v.wait, v.rows = stateParked, c.backoff(v.attempts), fresh(stands)
		return park(ctx, tx, i, cause, v, history)
	})
	if err != nil {
		return verdict{}, fmt.Errorf("record failure: %w", err)
	}
	if v.state == stateDead {
		failpoint.Hit(c.Name + ".dead_committed")
	}
	return v, nil
}

// standing is where an event stands to its lane.
type standing int

const (
	passed standing = iota // it holds nothing
	next
	later
)

func stand(version, lane int64) standing {
	switch {
	case version <= lane:
		return passed
	case version == lane+1:
		return next
	}
	return later
}

// fresh is how many rows a failure adds.
func fresh(stands bool) int64 {
	if stands {
		return 0
	}
	return 1
}

// earlier is what the event's row remembers.
type earlier struct {
	attempts int
	history  string
}

// failedBefore returns how many attempts the event's row counts; a dead one is beyond counting.
func failedBefore(ctx context.Context, tx *database.Tx, i *item) (before earlier, stands bool, err error) {
	var state, headers string
	err = tx.QueryRowContext(ctx, `SELECT state, attempts, history, headers FROM parked WHERE event_id = $1`+tx.Dialect().ForUpdate(), i.ID).
		Scan(&state, &before.attempts, &before.history, &headers)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return earlier{history: "[]"}, false, nil
	case err != nil:
		return before, false, fmt.Errorf("read parked: %w", err)
	case state == stateDead:
		before.attempts = i.attempts + 1
	}
	route, _ := storedRoute(headers) // a row that cannot be read has its letter
	i.route = route.With(i.route)
	return before, true, nil
}

// bury writes the dead letter. Its row stays as dead when it holds its order; with the policy skip the
// lane goes on instead.
func (c *Consumer) bury(
	ctx context.Context, tx *database.Tx, i *item, cause error, v *verdict, where standing, stands bool, history string,
) error {
	v.skipped = where == next && c.AfterDeath == Skip
	l := letterOf(i, cause, v.attempts)
	l.history, l.skipped = history, v.skipped
	if err := c.roomForLetter(ctx, tx, l.id); err != nil {
		return err
	}
	if err := insertLetter(ctx, tx, l); err != nil {
		return err
	}
	if where != passed && !v.skipped {
		v.rows = fresh(stands)
		return park(ctx, tx, i, cause, *v, history)
	}
	if v.skipped {
		if err := advance(ctx, tx, map[string]int64{i.Subject: i.Version}); err != nil {
			return err
		}
	}
	if stands {
		v.rows = -1
	}
	return deleteRows(ctx, tx, []string{i.ID})
}

func park(ctx context.Context, tx *database.Tx, i *item, cause error, v verdict, history string) error {
	from := i.origin()
	_, err := tx.ExecContext(ctx, `
		INSERT INTO parked (event_id, order_id, version, state, event, stream_sequence, attempts, next_attempt_at, last_error,
			subject, headers, history)
		VALUES ($1, $2, $3, $4, $5, $6, $7, `+tx.Dialect().Now()+` + $8, $9, $10, $11, $12)
		ON CONFLICT (event_id) DO UPDATE SET state = excluded.state, attempts = excluded.attempts,
			next_attempt_at = excluded.next_attempt_at, claimed_until = 0, last_error = excluded.last_error, history = excluded.history,
			headers = excluded.headers`,
		i.ID, i.Subject, i.Version, v.state, i.Raw, int64(i.Sequence), v.attempts, v.wait.Microseconds(), clean(cause.Error(), maxText),
		from.topic, from.headers, history)
	if err != nil {
		return fmt.Errorf("park: %w", err)
	}
	return nil
}

// backoff is the time before the attempt after the n-th, with a fifth of jitter either way.
func (c *Consumer) backoff(n int) time.Duration {
	d := c.MaxBackoff
	if n <= 40 && c.Backoff<<(n-1) > 0 && c.Backoff<<(n-1)>>(n-1) == c.Backoff {
		d = min(d, c.Backoff<<(n-1))
	}
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64()))
}

// buryRows makes dead letters of rows that cannot be decoded here. Their orders stay held.
func (c *Consumer) buryRows(ctx context.Context, bad []unreadable) error {
	for _, u := range bad {
		err := c.again(ctx, func(ctx context.Context, tx *database.Tx) error {
			err := insertLetter(ctx, tx, &letter{
				id: letterID(u.eventID), eventID: u.eventID, orderID: u.orderID, version: u.version,
				subject: u.topic, headers: u.headers, sequence: u.sequence, body: u.raw, reason: u.err.Error(), attempts: u.attempts,
			})
			if err != nil {
				return err
			}
			if !c.Ordered {
				return deleteRows(ctx, tx, []string{u.eventID})
			}
			_, err = tx.ExecContext(ctx, `UPDATE parked SET state = 'dead', last_error = $2 WHERE event_id = $1`,
				u.eventID, clean(u.err.Error(), maxText))
			return err
		})
		if err != nil {
			return fmt.Errorf("bury unreadable row: %w", err)
		}
		c.metrics.events(resultDead, 1)
	}
	return nil
}

// again runs a small transaction, repeated when it met a lock.
func (c *Consumer) again(ctx context.Context, do func(context.Context, *database.Tx) error) error {
	return again(ctx, c.db, do)
}

func again(ctx context.Context, db *database.DB, do func(context.Context, *database.Tx) error) error {
	for try := 1; ; try++ {
		err := db.Tx(ctx, do)
		if !isConflict(err) || try == conflictTries || !wait.For(ctx, conflictPause(try)) {
			return err
		}
	}
}

const conflictTries = 4

func isConflict(err error) bool {
	return errors.Is(err, errLaneGone) || databaseClass(err) == database.ClassConflict
}

// conflictPause is short and random: the other side of a deadlock must not come again at the same moment.
func conflictPause(try int) time.Duration {
	return time.Duration((0.5 + rand.Float64()) * float64(time.Duration(try)*10*time.Millisecond))
}
