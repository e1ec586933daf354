package ledger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/pillarbox/pillarbox/shared/database"
)

// States of a delivery to a mail server.
//
//	(none) ─ Enqueue ─▶ queued ─ Claim ─▶ sending ─ Settle ─▶ accepted | refused | unknown
//	                      ▲                  │ Settle: another attempt later   │       │
//	                      └──────────────────┴──── Requeue: a person, or ──────┴───────┘
//	                                               (refused only) the event again
//	sending ─ MarkLost: nobody ended the attempt in its time ─▶ unknown
//
// A delivery with several recipients has the worst state of them, unknown before refused before accepted,
// once none of them is pending.
const (
	Queued   = "queued"
	Sending  = "sending"
	Accepted = "accepted"
	Refused  = "refused"
	Unknown  = "unknown"
	// Pending is the state of a recipient while the delivery is queued or sending.
	Pending = "pending"
)

// Recipient is one addressee of a delivery, and what the server said of it.
type Recipient struct {
	Address string `json:"address"`
	State   string `json:"state"` // Pending, Accepted, Refused or Unknown
	Reply   string `json:"reply,omitempty"`
}

// Outgoing is a delivery that a mail server is to take.
type Outgoing struct {
	Delivery
	Recipients []Recipient
	Event      []byte // what the mail is made of

	// The rest is given by Claim.
	Attempts int       // that counted against the mail, the one under way included
	QueuedAt time.Time // since when it is tried
	Claim    string    // of the attempt under way
}

// maxEvents bounds the bytes of events in one statement.
const maxEvents = 4 << 20

// Enqueue queues the deliveries that have no row yet, in the transaction that makes their events take effect.
func Enqueue(ctx context.Context, tx *database.Tx, deliveries []Outgoing) error {
	const most = 100
	for chunk := range slices.Chunk(deliveries, most) {
		inserted, err := insertQueued(ctx, tx, chunk)
		if err != nil {
			return fmt.Errorf("queue deliveries: %w", err)
		}
		if len(inserted) < len(chunk) {
			rows := make([]Delivery, len(chunk))
			for i, d := range chunk {
				rows[i] = d.Delivery
			}
			if err := checkRows(ctx, tx, rows); err != nil {
				return err
			}
		}
		chunk = slices.DeleteFunc(slices.Clone(chunk), func(d Outgoing) bool { return !inserted[d.ID] })
		if err := keepEvents(ctx, tx, chunk); err != nil {
			return err
		}
	}
	return nil
}

func insertQueued(ctx context.Context, tx *database.Tx, chunk []Outgoing) (inserted map[string]bool, err error) {
	var failed error
	values, args := database.Rows(tx.Dialect(), chunk, func(d Outgoing) []any {
		recipients, err := json.Marshal(d.Recipients)
		failed = errors.Join(failed, err)
		return []any{d.ID, d.EventID, d.OrderID, d.Version, d.Recipient, d.Template, d.MessageID, string(recipients), Queued, ""}
	})
	if failed != nil {
		return nil, failed
	}
	rows, err := tx.QueryContext(ctx, `
		INSERT INTO deliveries (id, event_id, order_id, version, recipient, template, message_id, recipients, state, staged_name) `+
		values+` ON CONFLICT DO NOTHING RETURNING id`, args...)
	if err != nil {
		return nil, err
	}
	inserted = make(map[string]bool, len(chunk))
	err = each(rows, func(scan func(...any) error) error {
		var id string
		err := scan(&id)
		inserted[id] = true
		return err
	})
	if err != nil {
		return nil, err
	}
	if len(inserted) == 0 {
		return inserted, nil
	}
	now := tx.Dialect().Now()
	condition, arg := tx.Dialect().AnyOf(1, slices.Collect(maps.Keys(inserted)))
	_, err = tx.ExecContext(ctx, `UPDATE deliveries SET queued_at = `+now+`, next_attempt_at = `+now+` WHERE id `+condition, arg)
	return inserted, err
}

// keepEvents writes what the mails are made of.
func keepEvents(ctx context.Context, tx *database.Tx, deliveries []Outgoing) error {
	for len(deliveries) > 0 {
		n, size := 0, 0
		for n < len(deliveries) && (n == 0 || size+len(deliveries[n].Event) <= maxEvents) {
			size += len(deliveries[n].Event)
			n++
		}
		values, args := database.Rows(tx.Dialect(), deliveries[:n], func(d Outgoing) []any { return []any{d.ID, d.Event} })
		_, err := tx.ExecContext(ctx, `INSERT INTO outgoing (delivery_id, event) `+values+` ON CONFLICT (delivery_id) DO NOTHING`, args...)
		if err != nil {
			return fmt.Errorf("keep events of deliveries: %w", err)
		}
		deliveries = deliveries[n:]
	}
	return nil
}

// due is the condition of a delivery d that may be attempted now: its time has come, and every lower version
// of its order is settled.
func due(d database.Dialect) string {
	return `d.state = 'queued' AND d.next_attempt_at <= ` + d.Now() + `
		AND NOT EXISTS (SELECT 1 FROM deliveries e
			WHERE e.order_id = d.order_id AND e.version < d.version AND e.state IN ('queued', 'sending'))`
}

// Due counts the deliveries that may be attempted now, up to most.
func Due(ctx context.Context, db *database.DB, most int) (n int, err error) {
	err = db.Read().QueryRowContext(ctx, `SELECT COUNT(*) FROM (
		SELECT 1 FROM deliveries d WHERE `+due(db.Dialect())+` LIMIT $1) AS found`, most).Scan(&n)
	if err != nil {
		return 0, fmt.Errorf("count due deliveries: %w", err)
	}
	return n, nil
}

// Claim begins attempts at up to most deliveries, the longest due first: once it is committed each counts as
// begun, under a claim that nobody else has, for as long as hold.
func Claim(ctx context.Context, tx *database.Tx, most int, claim string, hold time.Duration) ([]Outgoing, error) {
	now := tx.Dialect().Now()
	rows, err := tx.QueryContext(ctx, `
		WITH due AS MATERIALIZED (
			SELECT d.id AS id FROM deliveries d WHERE `+due(tx.Dialect())+`
			ORDER BY d.next_attempt_at LIMIT $1`+tx.Dialect().SkipLocked()+`)
		UPDATE deliveries SET state = 'sending', claim = $2, claimed_until = `+now+` + $3, attempts = attempts + 1
		WHERE id IN (SELECT id FROM due)
		RETURNING `+outgoingColumns, most, claim, hold.Microseconds())
	if err != nil {
		return nil, fmt.Errorf("claim deliveries: %w", err)
	}
	claimed, err := scanOutgoing(rows)
	if err != nil {
		return nil, fmt.Errorf("claim deliveries: %w", err)
	}
	return claimed, readEvents(ctx, tx, claimed)
}

const outgoingColumns = `id, event_id, order_id, version, recipient, template, staged_name, message_id,
	recipients, attempts, queued_at, claim`

func readEvents(ctx context.Context, q database.Querier, deliveries []Outgoing) error {
	if len(deliveries) == 0 {
		return nil
	}
	at := make(map[string]int, len(deliveries))
	ids := make([]string, len(deliveries))
	for i, d := range deliveries {
		at[d.ID], ids[i] = i, d.ID
	}
	condition, arg := q.Dialect().AnyOf(1, ids)
	rows, err := q.QueryContext(ctx, `SELECT delivery_id, event FROM outgoing WHERE delivery_id `+condition, arg)
	if err != nil {
		return fmt.Errorf("read events of deliveries: %w", err)
	}
	err = each(rows, func(scan func(...any) error) error {
		var id string
		var event []byte
		err := scan(&id, &event)
		deliveries[at[id]].Event = event
		return err
	})
	if err != nil {
		return fmt.Errorf("read events of deliveries: %w", err)
	}
	return nil
}
