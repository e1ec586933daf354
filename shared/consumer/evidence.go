package consumer

import (
	"context"
	"fmt"
	"strconv"

	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/reconcile"
)

// Table is the Evidence of a table that has a row, or several, for each event that took effect, with the columns
// position (ascending), event_id, order_id and order_version.
type Table struct {
	Name  string
	Time  string // its column with when a row was written, in microseconds
	Where string // which rows are about orders; "": all
}

// Proofs finds the events that have a row.
func (t Table) Proofs(ctx context.Context, q database.Querier, ids []string) (map[string]Proof, error) {
	condition, arg := q.Dialect().AnyOf(1, ids)
	rows, err := q.QueryContext(ctx, `SELECT DISTINCT event_id FROM `+t.Name+` WHERE event_id `+condition, arg)
	if err != nil {
		return nil, fmt.Errorf("look up %s: %w", t.Name, err)
	}
	found := map[string]Proof{}
	err = each(rows, func() error {
		var id string
		err := rows.Scan(&id)
		found[id] = Proof{In: reconcile.Done}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("look up %s: %w", t.Name, err)
	}
	return found, nil
}

// Held pages through the rows about orders, by position.
func (t Table) Held(ctx context.Context, q database.Querier, w reconcile.Window, cursor string) (held []reconcile.HeldEvent, next string, err error) {
	after := int64(0)
	if cursor != "" {
		if after, err = strconv.ParseInt(cursor, 10, 64); err != nil {
			return nil, "", fmt.Errorf("%w: cursor", reconcile.ErrInvalid)
		}
	}
	query := `SELECT position, event_id, order_id, order_version FROM ` + t.Name + `
		WHERE position > $1 AND ` + t.Time + ` >= $2`
	args := []any{after, database.Micros(w.Since), reconcile.MaxEvents}
	if t.Where != "" {
		query += ` AND ` + t.Where
	}
	if w.Order != "" {
		query += ` AND order_id = $4`
		args = append(args, w.Order)
	}
	rows, err := q.QueryContext(ctx, query+` ORDER BY position LIMIT $3`, args...)
	if err != nil {
		return nil, "", fmt.Errorf("list %s: %w", t.Name, err)
	}
	err = each(rows, func() error {
		var h reconcile.HeldEvent
		err := rows.Scan(&after, &h.ID, &h.Order, &h.Version)
		held = append(held, h)
		return err
	})
	if err != nil {
		return nil, "", fmt.Errorf("list %s: %w", t.Name, err)
	}
	if len(held) == reconcile.MaxEvents {
		next = strconv.FormatInt(after, 10)
	}
	return held, next, nil
}
