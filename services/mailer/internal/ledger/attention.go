package ledger

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/pillarbox/pillarbox/shared/database"
)

// ErrNotSettled: the delivery does not exist, or is in no state in which a person may send it again.
var ErrNotSettled = errors.New("no delivery of this id is unknown or refused")

// Entry is a delivery as a person sees it.
type Entry struct {
	Outgoing
	State     string
	CreatedAt time.Time
	SettledAt time.Time // zero when it is not
}

// List returns deliveries in a state, by id (which begins with the event's time), after the given id.
func List(ctx context.Context, db *database.DB, state, after string, most int) ([]Entry, error) {
	rows, err := db.Read().QueryContext(ctx, `
		SELECT id, event_id, order_id, version, recipient, template, message_id, recipients, attempts, state, created_at, COALESCE(settled_at, 0)
		FROM deliveries WHERE state = $1 AND id > $2 ORDER BY id LIMIT $3`, state, after, most)
	if err != nil {
		return nil, fmt.Errorf("list deliveries: %w", err)
	}
	var found []Entry
	err = each(rows, func(scan func(...any) error) error {
		var e Entry
		var recipients string
		var created, settled int64
		err := scan(&e.ID, &e.EventID, &e.OrderID, &e.Version, &e.Recipient, &e.Template, &e.MessageID, &recipients, &e.Attempts,
			&e.State, &created, &settled)
		if err == nil {
			err = json.Unmarshal([]byte(recipients), &e.Recipients)
		}
		e.CreatedAt = database.Time(created)
		if settled != 0 {
			e.SettledAt = database.Time(settled)
		}
		found = append(found, e)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list deliveries: %w", err)
	}
	return found, nil
}

// Person is who decides, and why.
type Person struct{ Who, Reason string }

// Resend queues an unknown or refused delivery again, for the recipients that are not known to have it. It is a
// person's decision, and recorded: whoever has the mail already gets it twice.
func Resend(ctx context.Context, db *database.DB, id string, by Person) error {
	return db.Tx(ctx, func(ctx context.Context, tx *database.Tx) error {
		var eventID, state string
		err := tx.QueryRowContext(ctx, `SELECT event_id, state FROM deliveries WHERE id = $1`+tx.Dialect().ForUpdate(), id).Scan(&eventID, &state)
		if errors.Is(err, sql.ErrNoRows) || err == nil && state != Unknown && state != Refused {
			return ErrNotSettled
		}
		if err != nil {
			return fmt.Errorf("read delivery: %w", err)
		}
		// The event of a refused one lies in its dead letter.
		_, err = tx.ExecContext(ctx, `INSERT INTO outgoing (delivery_id, event)
			SELECT $1, body FROM dead_letters WHERE id = $2 ON CONFLICT (delivery_id) DO NOTHING`, id, letterID(eventID))
		if err != nil {
			return fmt.Errorf("take event from dead letter: %w", err)
		}
		var there bool
		if err := tx.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM outgoing WHERE delivery_id = $1)`, id).Scan(&there); err != nil {
			return fmt.Errorf("look for event: %w", err)
		}
		if !there {
			return errors.New("the event of the delivery is gone with its dead letter")
		}
		if err := unbury(ctx, tx, eventID); err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `INSERT INTO operator_actions (who, action, target, reason, result) VALUES ($1, 'resend', $2, $3, $4)`,
			clip(by.Who, 200), id, clip(by.Reason, 1000), "queued again, was "+state)
		if err != nil {
			return fmt.Errorf("record action: %w", err)
		}
		return requeue(ctx, tx, id, 0, Unknown, Refused)
	})
}

// RequeueRefused queues refused deliveries of events that are handled again (a redrive of their dead letters, a
// replay): certainly nobody who was refused has the mail. event gives an event's bytes by its id. They wait for
// pause, in which the consumer removes the old dead letter: a new one must not go with it.
func RequeueRefused(ctx context.Context, tx *database.Tx, eventIDs []string, event func(id string) []byte, pause time.Duration) error {
	if len(eventIDs) == 0 {
		return nil
	}
	condition, arg := tx.Dialect().AnyOf(1, eventIDs)
	rows, err := tx.QueryContext(ctx, `SELECT id, event_id FROM deliveries
		WHERE state = 'refused' AND event_id `+condition+` ORDER BY id`+tx.Dialect().ForUpdate(), arg)
	if err != nil {
		return fmt.Errorf("look for refused deliveries: %w", err)
	}
	var again []Outgoing
	err = each(rows, func(scan func(...any) error) error {
		var d Outgoing
		err := scan(&d.ID, &d.EventID)
		d.Event = event(d.EventID)
		again = append(again, d)
		return err
	})
	if err != nil {
		return fmt.Errorf("look for refused deliveries: %w", err)
	}
	if err := keepEvents(ctx, tx, again); err != nil {
		return err
	}
	for _, d := range again {
		if err := requeue(ctx, tx, d.ID, pause, Refused); err != nil {
			return err
		}
	}
	return nil
}

// requeue makes the recipients in the given states pending. The row is locked.
func requeue(ctx context.Context, tx *database.Tx, id string, pause time.Duration, states ...string) error {
	var text string
	if err := tx.QueryRowContext(ctx, `SELECT recipients FROM deliveries WHERE id = $1`, id).Scan(&text); err != nil {
		return fmt.Errorf("read recipients: %w", err)
	}
	var recipients []Recipient
	if err := json.Unmarshal([]byte(text), &recipients); err != nil {
		return fmt.Errorf("read recipients: %w", err)
	}
	for i, r := range recipients {
		for _, state := range states {
			if r.State == state {
				recipients[i].State = Pending
			}
		}
	}
	changed, err := json.Marshal(recipients)
	if err != nil {
		return fmt.Errorf("write recipients: %w", err)
	}
	now := tx.Dialect().Now()
	_, err = tx.ExecContext(ctx, `UPDATE deliveries SET state = 'queued', recipients = $2, claim = '', claimed_until = 0, settled_at = NULL,
		queued_at = `+now+`, next_attempt_at = `+now+` + $3 WHERE id = $1`, id, string(changed), pause.Microseconds())
	if err != nil {
		return fmt.Errorf("queue delivery again: %w", err)
	}
	return nil
}

// Queue is what waits for the mail server, and what a person has to look at.
type Queue struct {
	Waiting int           // queued or sending
	Bytes   int64         // of their events
	Oldest  time.Duration // since when the oldest waits
	Refused int
	Unknown int
}

// Look counts the queue.
func Look(ctx context.Context, db *database.DB) (Queue, error) {
	var q Queue
	var oldest int64
	err := db.Read().QueryRowContext(ctx, `
		SELECT COUNT(*), COALESCE(`+db.Dialect().Now()+` - MIN(d.queued_at), 0), COALESCE(CAST(SUM(length(o.event)) AS BIGINT), 0)
		FROM deliveries d LEFT JOIN outgoing o ON o.delivery_id = d.id
		WHERE d.state IN ('queued', 'sending')`).Scan(&q.Waiting, &oldest, &q.Bytes)
	if err != nil {
		return Queue{}, fmt.Errorf("count waiting deliveries: %w", err)
	}
	q.Oldest = max(time.Duration(oldest)*time.Microsecond, 0)
	err = db.Read().QueryRowContext(ctx, `
		SELECT COALESCE(SUM(CASE WHEN state = 'refused' THEN 1 ELSE 0 END), 0), COALESCE(SUM(CASE WHEN state = 'unknown' THEN 1 ELSE 0 END), 0)
		FROM deliveries WHERE state IN ('refused', 'unknown')`).Scan(&q.Refused, &q.Unknown)
	if err != nil {
		return Queue{}, fmt.Errorf("count settled deliveries: %w", err)
	}
	return q, nil
}
