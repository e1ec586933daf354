package consumer

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/events"
	"github.com/pillarbox/pillarbox/shared/reconcile"
)

// Cursors of Held: what took effect, then what is parked, then what is dead.
const (
	heldEffects = "effects:"
	heldParked  = "parked:"
	heldDead    = "dead:"
)

// Held is a page of the events that the consumer knows.
func (a *Account) Held(ctx context.Context, w reconcile.Window, cursor string) (page reconcile.HeldPage, err error) {
	q := a.db.Read()
	if cursor == "" {
		cursor = heldEffects
	}
	if after, ok := strings.CutPrefix(cursor, heldEffects); ok {
		if a.Evidence != nil {
			if page.Events, page.Next, err = a.Evidence.Held(ctx, q, w, after); err != nil {
				return page, fmt.Errorf("list effects: %w", err)
			}
		}
		if page.Next != "" {
			page.Next = heldEffects + page.Next
		} else {
			page.Next = heldParked
		}
		return page, nil
	}
	kind, query := heldParked, `SELECT event_id, event_id, order_id, version, event FROM parked WHERE event_id > $1 AND created_at >= $2`
	after, ok := strings.CutPrefix(cursor, heldParked)
	if !ok {
		// Letters of what could not be read say nothing for certain.
		kind, query = heldDead, `SELECT id, coalesce(event_id, ''), coalesce(order_id, ''), coalesce(version, 0), body FROM dead_letters
			WHERE id > $1 AND created_at >= $2 AND id LIKE 'event-%'`
		if after, ok = strings.CutPrefix(cursor, heldDead); !ok {
			return page, fmt.Errorf("%w: cursor", reconcile.ErrInvalid)
		}
	}
	return a.heldRows(ctx, w, kind, query, after)
}

const heldRows = 100 // with their bytes, to tell what is of orders

func (a *Account) heldRows(ctx context.Context, w reconcile.Window, kind, query, after string) (page reconcile.HeldPage, err error) {
	args := []any{after, database.Micros(w.Since), heldRows}
	if w.Order != "" {
		query += ` AND order_id = $4`
		args = append(args, w.Order)
	}
	rows, err := a.db.Read().QueryContext(ctx, query+` ORDER BY 1 LIMIT $3`, args...)
	if err != nil {
		return page, fmt.Errorf("list parked and dead: %w", err)
	}
	n := 0
	err = each(rows, func() error {
		var h reconcile.HeldEvent
		var raw []byte
		if err := rows.Scan(&after, &h.ID, &h.Order, &h.Version, &raw); err != nil {
			return err
		}
		n++
		if e, err := events.Decode(raw); err == nil && e.OfOrder() {
			page.Events = append(page.Events, h)
		}
		return nil
	})
	if err != nil {
		return page, fmt.Errorf("list parked and dead: %w", err)
	}
	switch {
	case n == heldRows:
		page.Next = kind + after
	case kind == heldParked:
		page.Next = heldDead
	}
	page.Events = slices.Clip(page.Events)
	return page, nil
}
