package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/lease"
	"github.com/pillarbox/pillarbox/shared/logs"
)

const (
	// secondLook is after how long a short stream is looked at again: a cluster's new
	// leader may answer before it has caught up, and a wrong alarm has every consumer
	// read the whole stream anew.
	secondLook = 200 * time.Millisecond
	// refillPrefix and the refill's number come before the event id in publish ids.
	refillPrefix = "refill-"
	// What one transaction moves from the log to the list of lost events.
	moveRows, moveIDs = 500, 1000
)

// A refill has a number n, raised in the transaction that begins it (refill_from is
// set, nothing is published yet), and publishes under ids with n in them. So what was
// published in an earlier refill and lost again is not swallowed by the duplicate
// window, while a page that a crash left in doubt is recognized.
//
// Each page that is confirmed is off the list (or below the cursor) in one
// transaction with relay_log and last_seq; a crash starts over with the first page
// that is not. When the stream loses something in a refill, that is a new refill
// of what is still to do and what was lost now.

// refillAll begins to publish the whole horizon again: this is another stream.
func (l *leader) refillAll(ctx context.Context, stream broker.StreamState) error {
	s := l.state
	s.created, s.lastSeq = database.Micros(stream.Created), stream.LastSeq
	s.generation = max(s.generation, stream.Generation)
	if stream.LastSeq < l.state.lastSeq {
		// Somebody else made it: its sequences have been used before.
		s.generation++
	}
	s.refillCount++
	s.refillFrom = sql.NullInt64{Int64: int64(stream.LastSeq), Valid: true}
	var err error
	if s.cursor, err = l.beforeHorizon(ctx); err != nil {
		return fmt.Errorf("begin refill: %w", err)
	}
	// Log rows of the old stream above the new one's end would look like a lost tail.
	if err := l.inBites(ctx, func(ctx context.Context, tx *database.Tx) (int64, error) {
		return affected(tx.ExecContext(ctx, `DELETE FROM relay_log WHERE last_seq IN
			(SELECT last_seq FROM relay_log WHERE last_seq > $1 ORDER BY last_seq LIMIT 1000)`, s.lastSeq))
	}); err != nil {
		return fmt.Errorf("begin refill: %w", err)
	}
	// The horizon holds what was still to do of an earlier refill.
	if err := l.inBites(ctx, func(ctx context.Context, tx *database.Tx) (int64, error) {
		return affected(tx.ExecContext(ctx, `DELETE FROM relay_lost WHERE seq IN
			(SELECT seq FROM relay_lost ORDER BY seq LIMIT 1000)`))
	}); err != nil {
		return fmt.Errorf("begin refill: %w", err)
	}
	return l.beginRefill(ctx, s, witness{}, "the broker lost its stream: refilling the horizon")
}

// refillTail begins to publish again what the log knows and the stream has no longer.
func (l *leader) refillTail(ctx context.Context, stream broker.StreamState) error {
	if !sleep[struct{}](ctx, secondLook, nil) {
		return ctx.Err()
	}
	again, err := l.r.conn.Stream(ctx, l.r.c.Stream)
	if err != nil {
		return err
	}
	if !again.Created.Equal(stream.Created) {
		return errors.New("the stream changes while it is compared")
	}
	if whole, err := l.whole(ctx, again); err != nil || whole {
		return err
	}
	above, err := l.agreement(ctx, again)
	if err != nil {
		return err
	}
	last, err := l.logged(ctx, above)
	if err != nil {
		return err
	}
	if err := l.inBites(ctx, func(ctx context.Context, tx *database.Tx) (int64, error) {
		return moveLost(ctx, tx, above)
	}); err != nil {
		return fmt.Errorf("begin refill: %w", err)
	}
	s := l.state
	s.lastSeq = min(above, again.LastSeq)
	if last.sequence > 0 {
		s.lastSeq = last.sequence
	}
	// The lost sequences are used again: late acks of the old messages must not meet
	// the new ones, so the durables get new names.
	s.generation = max(s.generation, again.Generation) + 1
	s.refillCount++
	s.refillFrom = sql.NullInt64{Int64: int64(s.lastSeq), Valid: true}
	return l.beginRefill(ctx, s, last, "the broker lost the end of its stream: refilling it")
}

func (l *leader) beginRefill(ctx context.Context, s state, w witness, message string) error {
	lost := l.state.lastSeq
	l.r.step("refill.listed")
	if err := l.replace(ctx, s, restartReplays); err != nil {
		return fmt.Errorf("begin refill: %w", err)
	}
	l.unlisted, l.witness, l.highest = false, w, 0
	l.r.step("refill.begun")
	l.r.metrics.refilling.Set(1)
	l.log.ErrorContext(ctx, message, logs.Sequence, s.lastSeq, keyConfirmed, lost,
		keyGeneration, s.generation, keyRefill, s.refillCount)
	// Before the first publish: consumers see the new generation before they see new messages.
	return l.ensureStream(ctx, s)
}

// Keys of the refill's own log lines.
const (
	keyConfirmed  = "confirmed_sequence"
	keyGeneration = "generation"
	keyRefill     = "refill"
)

func (l *leader) endRefill(ctx context.Context) error {
	l.r.step("refill.published")
	s := l.state
	s.refillFrom, s.cursor = sql.NullInt64{}, sql.NullInt64{}
	if err := l.replace(ctx, s); err != nil {
		return fmt.Errorf("end refill: %w", err)
	}
	l.r.step("refill.ended")
	l.r.metrics.refilling.Set(0)
	l.log.InfoContext(ctx, "refill done", keyRefill, s.refillCount, logs.Sequence, s.lastSeq)
	return nil
}

// beforeHorizon returns the events.seq below the first event of the horizon. Events
// commit out of the order of their clock readings, so it is the lowest of many.
func (l *leader) beforeHorizon(ctx context.Context) (cursor sql.NullInt64, err error) {
	cursor.Valid = true
	err = l.r.db.Read().QueryRowContext(ctx, `SELECT coalesce(
			(SELECT min(seq) FROM (SELECT seq FROM events WHERE created_at >= `+l.r.db.Dialect().Now()+` - $1
				ORDER BY created_at LIMIT 1000) AS oldest) - 1,
			(SELECT max(seq) FROM events), 0)`, l.r.c.Horizon.Microseconds()).Scan(&cursor.Int64)
	return cursor, err
}

// moveLost takes some runs above the sequence out of the log and lists their events as lost.
func moveLost(ctx context.Context, tx *database.Tx, above uint64) (int64, error) {
	runs, err := readRuns(ctx, tx, above)
	if err != nil || len(runs) == 0 {
		return 0, err
	}
	var lost []string
	upTo := runs[len(runs)-1].last
	var kept []run
	for _, r := range runs {
		if r.first() <= above { // the stream still has the beginning of this run
			n := int(above - r.first() + 1)
			kept = append(kept, run{last: above, ids: r.ids[:n]})
			r.ids = r.ids[n:]
		}
		lost = append(lost, r.ids...)
	}
	condition, arg := tx.Dialect().AnyOf(1, lost)
	if _, err := tx.ExecContext(ctx, `INSERT INTO relay_lost (seq) SELECT seq FROM events WHERE id `+condition+`
		ON CONFLICT (seq) DO NOTHING`, arg); err != nil {
		return 0, fmt.Errorf("list lost events: %w", err)
	}
	n, err := affected(tx.ExecContext(ctx, `DELETE FROM relay_log WHERE last_seq > $1 AND last_seq <= $2`, above, upTo))
	if err != nil {
		return 0, err
	}
	return n, insertRuns(ctx, tx, kept)
}

func readRuns(ctx context.Context, tx *database.Tx, above uint64) (runs []run, err error) {
	rows, err := tx.QueryContext(ctx, `SELECT last_seq, event_ids FROM relay_log WHERE last_seq > $1
		ORDER BY last_seq LIMIT $2`, above, moveRows)
	if err != nil {
		return nil, fmt.Errorf("read relay log: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	n := 0
	for rows.Next() && n < moveIDs {
		r, err := scanRun(rows)
		if err != nil {
			return nil, fmt.Errorf("read relay log: %w", err)
		}
		n += len(r.ids)
		runs = append(runs, r)
	}
	return runs, rows.Err()
}

// inBites repeats a small transaction until it finds nothing more to do.
func (l *leader) inBites(ctx context.Context, bite func(context.Context, *database.Tx) (int64, error)) error {
	for {
		var n int64
		err := l.r.db.Tx(ctx, func(ctx context.Context, tx *database.Tx) (err error) {
			if err := lease.Check(ctx, tx, leaseName, l.term); err != nil {
				return err
			}
			n, err = bite(ctx, tx)
			return err
		})
		if err != nil || n == 0 {
			return err
		}
	}
}

func affected(result sql.Result, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}
