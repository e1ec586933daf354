package ledger

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pillarbox/pillarbox/shared/database"
)

// Settlement is the end of an attempt.
type Settlement struct {
	Outgoing               // with its recipients as they are now
	Wait     time.Duration // before the next attempt, when a recipient is pending
	Earlier  bool          // the delivery may have left a dead letter before
}

// State is the delivery's after the attempt.
func (s Settlement) State() string { return stateOf(s.Recipients) }

func stateOf(recipients []Recipient) string {
	has := func(state string) bool {
		return slices.ContainsFunc(recipients, func(r Recipient) bool { return r.State == state })
	}
	switch {
	case has(Pending):
		return Queued
	case has(Unknown):
		return Unknown
	case has(Refused):
		return Refused
	}
	return Accepted
}

// Settle writes down how attempts ended. What another replica has taken for lost meanwhile becomes what it
// really is, except that a mail that was not sent stays unknown, and says so: later ones of its order may be on
// their way, and only a person sends it out of order. What a person has queued again stays queued. Settle may be
// repeated.
func Settle(ctx context.Context, tx *database.Tx, settlements []Settlement) error {
	// Rows are locked in one order by every replica.
	settlements = slices.SortedFunc(slices.Values(settlements), func(a, b Settlement) int { return strings.Compare(a.ID, b.ID) })
	for _, s := range settlements {
		if err := settle(ctx, tx, s); err != nil {
			return fmt.Errorf("settle delivery: %w", err)
		}
	}
	return nil
}

func settle(ctx context.Context, tx *database.Tx, s Settlement) error {
	recipients, err := json.Marshal(s.Recipients)
	if err != nil {
		return err
	}
	state, now := s.State(), tx.Dialect().Now()
	accepted, settled, from := "NULL", now, "('sending', 'unknown')"
	switch state {
	case Accepted:
		accepted = now
	case Queued:
		settled, from = "NULL", "('sending')"
	}
	result, err := tx.ExecContext(ctx, `
		UPDATE deliveries SET state = $1, recipients = $2, attempts = $3, next_attempt_at = `+now+` + $4,
			claimed_until = 0, accepted_at = `+accepted+`, settled_at = `+settled+`
		WHERE id = $5 AND claim = $6 AND state IN `+from,
		state, string(recipients), s.Attempts, s.Wait.Microseconds(), s.ID, s.Outgoing.Claim)
	if err != nil {
		return err
	}
	n, err := result.RowsAffected()
	switch {
	case err != nil:
		return err
	case n == 0 && state == Queued:
		return late(ctx, tx, s)
	case n == 0:
		return nil
	}
	switch state {
	case Refused:
		err = bury(ctx, tx, s.Outgoing)
	case Accepted:
		if s.Earlier {
			err = unbury(ctx, tx, s.EventID)
		}
	default:
		return nil // the event is needed for another attempt
	}
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `DELETE FROM outgoing WHERE delivery_id = $1`, s.ID)
	return err
}

// late writes into a delivery that is unknown meanwhile that it was not sent after all.
func late(ctx context.Context, tx *database.Tx, s Settlement) error {
	recipients := slices.Clone(s.Recipients)
	for i, r := range recipients {
		if r.State == Pending {
			recipients[i] = Recipient{r.Address, Unknown, "it was not sent, which was found out late: " + r.Reply}
		}
	}
	text, err := json.Marshal(recipients)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `UPDATE deliveries SET recipients = $1 WHERE id = $2 AND claim = $3 AND state = 'unknown'`,
		string(text), s.ID, s.Outgoing.Claim)
	return err
}

// letterID is the dead letter's id, the one that the consumer would give the event's.
func letterID(eventID string) string { return "event-" + eventID }

// bury keeps the event with the server's words. Its order is not held: it took effect, and its lane went on.
func bury(ctx context.Context, tx *database.Tx, d Outgoing) error {
	if d.Event == nil {
		d.Event = []byte{} // NULL would be refused
	}
	_, err := tx.ExecContext(ctx, `
		INSERT INTO dead_letters (id, event_id, order_id, version, body, reason, attempts)
		VALUES ($1, $2, $3, $4, $5, $6, $7)
		ON CONFLICT (id) DO UPDATE SET reason = excluded.reason, attempts = excluded.attempts`,
		letterID(d.EventID), d.EventID, d.OrderID, d.Version, d.Event, d.reason(), d.Attempts)
	if err != nil {
		return fmt.Errorf("insert dead letter: %w", err)
	}
	return nil
}

func unbury(ctx context.Context, tx *database.Tx, eventID string) error {
	if _, err := tx.ExecContext(ctx, `DELETE FROM dead_letters WHERE id = $1`, letterID(eventID)); err != nil {
		return fmt.Errorf("delete dead letter: %w", err)
	}
	return nil
}

// reason is what the server said of the recipients that it refused.
func (d Outgoing) reason() string {
	const most = 4000
	var b strings.Builder
	refused := 0
	for _, r := range d.Recipients {
		if r.State != Refused {
			continue
		}
		refused++
		if b.Len() < most/2 {
			fmt.Fprintf(&b, "; %s: %s", r.Address, r.Reply)
		}
	}
	text := fmt.Sprintf("refused for %d of %d recipients by the mail server%s", refused, len(d.Recipients), b.String())
	return clip(text, most)
}

// clip makes text fit for a column: PostgreSQL takes neither NUL nor broken UTF-8.
func clip(s string, most int) string {
	s = strings.ReplaceAll(strings.ToValidUTF8(s, "?"), "\x00", "")
	return strings.ToValidUTF8(s[:min(len(s), most)], "")
}

// Release gives back a claim of which it is certain that nothing was sent under it.
func Release(ctx context.Context, tx *database.Tx, claim string) error {
	_, err := tx.ExecContext(ctx, `
		UPDATE deliveries SET state = 'queued', attempts = attempts - 1, claimed_until = 0, settled_at = NULL
		WHERE claim = $1 AND state = 'sending'`, claim)
	if err != nil {
		return fmt.Errorf("release claim: %w", err)
	}
	return nil
}

// MarkLost makes unknown what was begun and not ended in its time: its replica died, or stands still.
func MarkLost(ctx context.Context, db *database.DB, most int) (lost []Outgoing, err error) {
	var some bool
	overdue := `state = 'sending' AND claimed_until <= ` + db.Dialect().Now()
	if err := db.Read().QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM deliveries WHERE `+overdue+`)`).Scan(&some); err != nil {
		return nil, fmt.Errorf("look for lost attempts: %w", err)
	}
	if !some {
		return nil, nil
	}
	err = db.Tx(ctx, func(ctx context.Context, tx *database.Tx) error {
		lost = nil
		rows, err := tx.QueryContext(ctx, `SELECT `+outgoingColumns+` FROM deliveries WHERE `+overdue+`
			ORDER BY id LIMIT $1`+tx.Dialect().SkipLocked(), most)
		if err != nil {
			return err
		}
		if lost, err = scanOutgoing(rows); err != nil {
			return err
		}
		for _, d := range lost {
			for i := range d.Recipients {
				if d.Recipients[i].State == Pending {
					d.Recipients[i].State, d.Recipients[i].Reply = Unknown, "the attempt was begun and its end is not known"
				}
			}
			recipients, err := json.Marshal(d.Recipients)
			if err != nil {
				return err
			}
			_, err = tx.ExecContext(ctx, `UPDATE deliveries SET state = 'unknown', recipients = $2, settled_at = `+tx.Dialect().Now()+`
				WHERE id = $1`, d.ID, string(recipients))
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("mark lost attempts: %w", err)
	}
	return lost, nil
}

// scanOutgoing reads outgoingColumns.
func scanOutgoing(rows *sql.Rows) (found []Outgoing, err error) {
	err = each(rows, func(scan func(...any) error) error {
		var d Outgoing
		var recipients string
		var queued int64
		err := scan(&d.ID, &d.EventID, &d.OrderID, &d.Version, &d.Recipient, &d.Template, &d.StagedName, &d.MessageID,
			&recipients, &d.Attempts, &queued, &d.Claim)
		if err == nil {
			err = json.Unmarshal([]byte(recipients), &d.Recipients)
		}
		d.QueuedAt = database.Time(queued)
		found = append(found, d)
		return err
	})
	return found, err
}
