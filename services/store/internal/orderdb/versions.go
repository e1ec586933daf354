package orderdb

import (
	"context"
	"errors"
	"fmt"

	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/reconcile"
)

// CheckVersions compares a page of orders, those after an id, with their events: these must be the versions 1 to the
// order's own. One statement reads both, so an order that changes meanwhile is seen before or after. Events without an
// order are found by the last page.
func CheckVersions(ctx context.Context, q database.Querier, w reconcile.Window, after string) (page reconcile.OrderPage, err error) {
	where, args := `o.id > $1 AND o.updated_at >= $2`, []any{after, database.Micros(w.Since), reconcile.MaxEvents}
	if w.Order != "" {
		where += ` AND o.id = $4`
		args = append(args, w.Order)
	}
	rows, err := q.QueryContext(ctx, `SELECT o.id, o.version, count(e.seq), coalesce(min(e.version), 0), coalesce(max(e.version), 0)
		FROM (SELECT o.id, o.version FROM orders o WHERE `+where+` ORDER BY o.id LIMIT $3) AS o
		LEFT JOIN events e ON e.order_id = o.id GROUP BY o.id, o.version ORDER BY o.id`, args...)
	if err != nil {
		return page, fmt.Errorf("check versions: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	last := ""
	for rows.Next() {
		var version, count, lowest, highest int64
		if err := rows.Scan(&last, &version, &count, &lowest, &highest); err != nil {
			return page, fmt.Errorf("check versions: %w", err)
		}
		page.Checked++
		if count != version || lowest != 1 || highest != version {
			page.Broken = append(page.Broken, reconcile.BrokenOrder{Order: last, Problem: fmt.Sprintf(
				"the order is at version %d and has %d events from version %d to %d", version, count, lowest, highest)})
		}
	}
	if err := rows.Err(); err != nil {
		return page, fmt.Errorf("check versions: %w", err)
	}
	if page.Checked == reconcile.MaxEvents {
		page.Next = last
		return page, nil
	}
	return page, withoutOrder(ctx, q, w, &page)
}

func withoutOrder(ctx context.Context, q database.Querier, w reconcile.Window, page *reconcile.OrderPage) (err error) {
	query, args := `SELECT DISTINCT e.order_id FROM events e WHERE e.created_at >= $1
		AND NOT EXISTS (SELECT 1 FROM orders o WHERE o.id = e.order_id)`, []any{database.Micros(w.Since), reconcile.MaxNamed}
	if w.Order != "" {
		query += ` AND e.order_id = $3`
		args = append(args, w.Order)
	}
	rows, err := q.QueryContext(ctx, query+` ORDER BY e.order_id LIMIT $2`, args...)
	if err != nil {
		return fmt.Errorf("look for events without an order: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		broken := reconcile.BrokenOrder{Problem: "there are events and no order"}
		if err := rows.Scan(&broken.Order); err != nil {
			return fmt.Errorf("look for events without an order: %w", err)
		}
		page.Broken = append(page.Broken, broken)
	}
	return rows.Err()
}
