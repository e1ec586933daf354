package consumer

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/pillarbox/pillarbox/shared/database"
)

// revive makes the letter's event a parked one that this replica has claimed, and returns it for its attempt;
// nil when the letter is settled without one. The letter stands until the event has taken effect, so a crash
// never leaves an event without either.
func (r *redriving) revive(ctx context.Context, tx *database.Tx, it *redriveItem) (*item, error) {
	if it.state == itemTrying {
		state, note, err := r.outcome(ctx, tx, *it)
		if err != nil {
			return nil, err
		}
		if state != itemTrying {
			if err := r.settle(ctx, tx, *it, state, note); err != nil || state != itemFailed {
				return nil, err
			}
			return nil, r.end(ctx, tx, redriveStopped, it.letter+" failed again: "+note)
		}
		// Its claim may be a dead leader's: nobody else's attempt would hurt.
		return r.claim(ctx, tx, it)
	}
	found, err := readLetters(ctx, tx, ` WHERE d.id = $1`, it.letter)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, r.settle(ctx, tx, *it, itemGone, "somebody else has settled it")
	}
	l := found[0]
	e, err := l.redrivable()
	if err != nil {
		return nil, r.settle(ctx, tx, *it, itemRefused, err.Error())
	}
	l.eventID, l.orderID, l.version = e.ID, e.Subject, e.Version
	if why, err := r.holdUp(ctx, tx, l); err != nil || why != "" {
		if err == nil {
			err = r.settle(ctx, tx, *it, itemRefused, why)
		}
		return nil, err
	}
	if err := r.asEvent(ctx, tx, it, l); err != nil {
		return nil, err
	}
	it.state, it.attempts = itemTrying, max(l.attempts, 1) // a row that has failed before owns a letter
	_, err = tx.ExecContext(ctx, `
		INSERT INTO parked (event_id, order_id, version, state, event, stream_sequence, attempts, subject, headers, history, last_error)
		VALUES ($1, $2, $3, 'parked', $4, $5, $6, $7, $8, $9, $10)
		ON CONFLICT (event_id) DO UPDATE SET state = 'parked', attempts = excluded.attempts`,
		l.eventID, l.orderID, l.version, l.body, int64(l.sequence), it.attempts, l.subject, l.headers, l.history, l.reason)
	if err != nil {
		return nil, fmt.Errorf("revive: %w", err)
	}
	_, err = tx.ExecContext(ctx, `UPDATE redrive_items SET state = 'trying', attempts = $3, letter_id = $4 WHERE redrive_id = $1 AND position = $2`,
		r.id, it.position, it.attempts, it.letter)
	if err != nil {
		return nil, fmt.Errorf("update redrive: %w", err)
	}
	return r.claim(ctx, tx, it)
}

// holdUp says why the event cannot take effect now: an attempt would come to nothing.
func (r *redriving) holdUp(ctx context.Context, tx *database.Tx, l *letter) (string, error) {
	if !r.c.Ordered {
		return "", nil
	}
	lanes, err := lockLanes(ctx, tx, []string{l.orderID}, nil)
	if err != nil {
		return "", err
	}
	if lane := lanes[l.orderID]; stand(l.version, lane) == later {
		return fmt.Sprintf("its order waits for %s: settle that first", Range{lane + 1, l.version - 1}), nil
	}
	return "", nil
}

// asEvent gives the letter of a message that could not be read, and can now, the id of its event.
func (r *redriving) asEvent(ctx context.Context, tx *database.Tx, it *redriveItem, l *letter) error {
	if l.id == letterID(l.eventID) {
		return nil
	}
	if _, err := tx.ExecContext(ctx, `DELETE FROM dead_letters WHERE id = $1`, l.id); err != nil {
		return fmt.Errorf("rename dead letter: %w", err)
	}
	l.id, l.attempts = letterID(l.eventID), max(l.attempts, 1)
	it.letter = l.id
	return insertLetter(ctx, tx, l)
}

// claim keeps the sweeps away from the row for as long as the attempt may take, and loads it.
func (r *redriving) claim(ctx context.Context, tx *database.Tx, it *redriveItem) (*item, error) {
	now := tx.Dialect().Now()
	items, _, err := storedItems(ctx, tx, `UPDATE parked SET claimed_until = `+now+` + $2, next_attempt_at = `+now+`
		WHERE event_id = (SELECT event_id FROM dead_letters WHERE id = $1) AND state = 'parked' RETURNING `+storedColumns,
		it.letter, r.c.claimTime())
	if err != nil {
		return nil, err
	}
	if len(items) == 0 {
		return nil, fmt.Errorf("redrive: the row of %s is gone", it.letter)
	}
	items[0].retry, items[0].last = true, true
	return items[0], nil
}

// outcome says what became of a letter under trial, by its row and itself.
func (r *redriving) outcome(ctx context.Context, tx *database.Tx, it redriveItem) (state, note string, err error) {
	found, err := readLetters(ctx, tx, ` WHERE d.id = $1`, it.letter)
	if err != nil {
		return "", "", err
	}
	if len(found) == 0 {
		return itemDone, "", nil // who settles the row of an event that had failed takes the letter along
	}
	l := found[0]
	var row string
	var attempts int
	var last string
	err = tx.QueryRowContext(ctx, `SELECT state, attempts, last_error FROM parked WHERE event_id = $1`, l.eventID).Scan(&row, &attempts, &last)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		// It holds nothing and was buried again; or, if its attempts are the same, an older replica settled it.
		if l.attempts > it.attempts {
			return itemFailed, l.reason, nil
		}
		if l.skipped {
			return itemGone, "an operator has let its order go on", nil
		}
		if _, err := tx.ExecContext(ctx, `DELETE FROM dead_letters WHERE id = $1`, l.id); err != nil {
			return "", "", fmt.Errorf("delete settled letter: %w", err)
		}
		return itemDone, "", nil
	case err != nil:
		return "", "", fmt.Errorf("read parked: %w", err)
	case row == stateDead || attempts > it.attempts:
		return itemFailed, last, nil
	}
	return itemTrying, "", nil
}
