// Package ledger is the mailer's own tables: one row per delivery, which says
// that the event took effect and which staged file is the mail, and the id of
// the pickup folder's marker.
//
// It promises one row per event, recipient and template, whoever tries. It
// knows nothing of files: whether a staged one was published is for the pickup
// folder to say. A crash leaves rows in state staged, whose files whoever comes
// next publishes.
//
//	(none) ── Insert ──▶ staged ── Accept, some time after the file appeared ──▶ accepted
package ledger

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/pillarbox/pillarbox/shared/database"
)

// ErrNoRow means that a delivery's row is missing though it was written or
// found taken: its id belongs to another event.
var ErrNoRow = errors.New("delivery id is taken by another event")

// Delivery is one mail to one recipient.
type Delivery struct {
	ID, EventID, OrderID string
	Version              int64
	Recipient, Template  string
	StagedName           string
	MessageID            string
}

// Insert writes the deliveries that have no row yet. Rows that exist stay as they are.
func Insert(ctx context.Context, tx *database.Tx, deliveries []Delivery) error {
	// SQLite looks each $n up among all before it, so that statements with many thousands take minutes.
	const most = 200
	for chunk := range slices.Chunk(deliveries, most) {
		values, args := database.Rows(tx.Dialect(), chunk, func(d Delivery) []any {
			return []any{d.ID, d.EventID, d.OrderID, d.Version, d.Recipient, d.Template, d.StagedName, d.MessageID}
		})
		// No conflict target: PostgreSQL would report a race on the other unique key as an error.
		result, err := tx.ExecContext(ctx, `
			INSERT INTO deliveries (id, event_id, order_id, version, recipient, template, staged_name, message_id) `+
			values+` ON CONFLICT DO NOTHING`, args...)
		if err != nil {
			return fmt.Errorf("insert deliveries: %w", err)
		}
		inserted, err := result.RowsAffected()
		if err != nil {
			return fmt.Errorf("count deliveries: %w", err)
		}
		if inserted < int64(len(chunk)) {
			if err := checkRows(ctx, tx, chunk); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkRows makes sure that each delivery has its row, whoever wrote it.
func checkRows(ctx context.Context, tx *database.Tx, deliveries []Delivery) error {
	events := make([]string, len(deliveries))
	for n, d := range deliveries {
		events[n] = d.EventID
	}
	condition, arg := tx.Dialect().AnyOf(1, events)
	type key struct{ event, recipient, template string }
	found := make(map[key]bool, len(deliveries))
	rows, err := tx.QueryContext(ctx,
		`SELECT event_id, recipient, template FROM deliveries WHERE event_id `+condition, arg)
	if err != nil {
		return fmt.Errorf("look for deliveries: %w", err)
	}
	err = each(rows, func(scan func(...any) error) error {
		var k key
		err := scan(&k.event, &k.recipient, &k.template)
		found[k] = true
		return err
	})
	if err != nil {
		return fmt.Errorf("look for deliveries: %w", err)
	}
	for _, d := range deliveries {
		if !found[key{d.EventID, d.Recipient, d.Template}] {
			return ErrNoRow
		}
	}
	return nil
}

// Staged returns the deliveries in state staged of the given orders up to the
// given version of each, in version order within each order.
func Staged(ctx context.Context, q database.Querier, upTo map[string]int64) ([]Delivery, error) {
	if len(upTo) == 0 {
		return nil, nil
	}
	condition, arg := q.Dialect().AnyOf(1, slices.Collect(maps.Keys(upTo)))
	var found []Delivery
	rows, err := q.QueryContext(ctx, `
		SELECT id, event_id, order_id, version, recipient, template, staged_name, message_id
		FROM deliveries
		WHERE state = 'staged' AND order_id `+condition, arg)
	if err != nil {
		return nil, fmt.Errorf("read staged deliveries: %w", err)
	}
	err = each(rows, func(scan func(...any) error) error {
		d, err := scanDelivery(scan)
		if err == nil && d.Version <= upTo[d.OrderID] {
			found = append(found, d)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read staged deliveries: %w", err)
	}
	Sort(found)
	return found, nil
}

// Sort puts deliveries in the order in which they may appear.
func Sort(deliveries []Delivery) {
	slices.SortFunc(deliveries, func(a, b Delivery) int {
		return cmp.Or(cmp.Compare(a.OrderID, b.OrderID), cmp.Compare(a.Version, b.Version), cmp.Compare(a.ID, b.ID))
	})
}

// Accept notes that the files of these deliveries were published.
func Accept(ctx context.Context, db *database.DB, ids []string) error {
	return accept(ctx, db, ids, 0, `(state = 'staged' OR state = 'accepted' AND assumed = 1)`)
}

// Assume notes that the files of these deliveries must have been published, since they are no longer staged. Who knows it
// says so with Accept, before or after.
func Assume(ctx context.Context, db *database.DB, ids []string) error {
	return accept(ctx, db, ids, 1, `state = 'staged'`)
}

func accept(ctx context.Context, db *database.DB, ids []string, assumed int, which string) error {
	if len(ids) == 0 {
		return nil
	}
	ids = slices.Sorted(slices.Values(ids)) // rows are locked in one order by every replica
	condition, arg := db.Dialect().AnyOf(2, ids)
	err := db.Tx(ctx, func(ctx context.Context, tx *database.Tx) error {
		_, err := tx.ExecContext(ctx, `
			UPDATE deliveries SET state = 'accepted', accepted_at = `+tx.Dialect().Now()+`, assumed = $1
			WHERE `+which+` AND id `+condition, assumed, arg)
		return err
	})
	if err != nil {
		return fmt.Errorf("accept deliveries: %w", err)
	}
	return nil
}

// Find returns the deliveries among ids that have a row, in any state, by id.
func Find(ctx context.Context, q database.Querier, ids []string) (map[string]Delivery, error) {
	found := make(map[string]Delivery, len(ids))
	if len(ids) == 0 {
		return found, nil
	}
	condition, arg := q.Dialect().AnyOf(1, ids)
	rows, err := q.QueryContext(ctx, `
		SELECT id, event_id, order_id, version, recipient, template, staged_name, message_id
		FROM deliveries WHERE id `+condition, arg)
	if err != nil {
		return nil, fmt.Errorf("find deliveries: %w", err)
	}
	err = each(rows, func(scan func(...any) error) error {
		d, err := scanDelivery(scan)
		found[d.ID] = d
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("find deliveries: %w", err)
	}
	return found, nil
}

// Overdue returns orders that have had a staged delivery for longer than age,
// each with the highest such version: at most limit deliveries, oldest first.
func Overdue(ctx context.Context, db *database.DB, age time.Duration, limit int) (map[string]int64, error) {
	rows, err := db.Read().QueryContext(ctx, `
		SELECT order_id, version FROM deliveries
		WHERE state = 'staged' AND created_at < `+db.Dialect().Now()+` - $1
		ORDER BY created_at LIMIT $2`, age.Microseconds(), limit)
	if err != nil {
		return nil, fmt.Errorf("read overdue deliveries: %w", err)
	}
	upTo := make(map[string]int64)
	err = each(rows, func(scan func(...any) error) error {
		var order string
		var version int64
		err := scan(&order, &version)
		upTo[order] = max(upTo[order], version)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read overdue deliveries: %w", err)
	}
	return upTo, nil
}

// Backlog returns how many deliveries are staged and the age of the oldest.
func Backlog(ctx context.Context, db *database.DB) (count int64, oldest time.Duration, err error) {
	var micros int64
	err = db.Read().QueryRowContext(ctx, `
		SELECT COUNT(*), COALESCE(`+db.Dialect().Now()+` - MIN(created_at), 0)
		FROM deliveries WHERE state = 'staged'`).Scan(&count, &micros)
	if err != nil {
		return 0, 0, fmt.Errorf("read backlog: %w", err)
	}
	return count, max(time.Duration(micros)*time.Microsecond, 0), nil
}

func scanDelivery(scan func(...any) error) (Delivery, error) {
	var d Delivery
	err := scan(&d.ID, &d.EventID, &d.OrderID, &d.Version, &d.Recipient, &d.Template, &d.StagedName, &d.MessageID)
	return d, err
}

// each visits the rows and closes them.
func each(rows *sql.Rows, visit func(scan func(...any) error) error) (err error) {
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		if err := visit(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}
