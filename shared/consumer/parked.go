package consumer

import (
	"context"
	"fmt"

	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/events"
)

// readRows returns the rows above the lanes of orders, at most span versions up.
func readRows(ctx context.Context, q database.Querier, orders []string, span int) (map[string][]row, error) {
	condition, arg := q.Dialect().AnyOf(2, orders)
	rows, err := q.QueryContext(ctx, `
		SELECT p.event_id, p.order_id, p.version, p.state, length(p.event), p.attempts
		FROM parked p LEFT JOIN lanes l ON l.order_id = p.order_id
		WHERE p.order_id `+condition+` AND p.version > coalesce(l.version, 0) AND p.version <= coalesce(l.version, 0) + $1
		ORDER BY p.order_id, p.version, p.event_id`, span, arg)
	if err != nil {
		return nil, fmt.Errorf("read parked: %w", err)
	}
	out := map[string][]row{}
	err = each(rows, func() error {
		var r row
		if err := rows.Scan(&r.eventID, &r.orderID, &r.version, &r.state, &r.size, &r.attempts); err != nil {
			return err
		}
		out[r.orderID] = append(out[r.orderID], r)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read parked: %w", err)
	}
	return out, nil
}

// storedColumns are what scanStored reads.
const storedColumns = `event_id, order_id, version, attempts, stream_sequence, subject, headers, event`

// unreadable is a row whose bytes this release cannot decode: a newer replica wrote it.
type unreadable struct {
	row
	origin
	raw []byte
	err error
}

// storedItems runs a query for storedColumns.
func storedItems(ctx context.Context, q database.Querier, query string, args ...any) ([]*item, []unreadable, error) {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, nil, fmt.Errorf("load parked: %w", err)
	}
	var out []*item
	var bad []unreadable
	err = each(rows, func() error {
		var r row
		var from origin
		var raw []byte
		if err := rows.Scan(&r.eventID, &r.orderID, &r.version, &r.attempts, &r.sequence, &from.topic, &from.headers, &raw); err != nil {
			return err
		}
		e, err := events.Decode(raw)
		var route events.Route
		if err == nil {
			route, err = storedRoute(from.headers)
		}
		if err != nil {
			bad = append(bad, unreadable{r, from, raw, err})
			return nil
		}
		out = append(out, &item{Event: Event{e, raw, r.sequence}, from: from, route: route, stored: true, attempts: r.attempts})
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("load parked: %w", err)
	}
	return out, bad, nil
}

// load returns the events of rows that a group takes along.
func load(ctx context.Context, q database.Querier, rows []row) ([]*item, []unreadable, error) {
	if len(rows) == 0 {
		return nil, nil, nil
	}
	ids := make([]string, len(rows))
	for n, r := range rows {
		ids[n] = r.eventID
	}
	condition, arg := q.Dialect().AnyOf(1, ids)
	return storedItems(ctx, q, `SELECT `+storedColumns+` FROM parked WHERE state = 'waiting' AND event_id `+condition, arg)
}

// insertWaiting writes the rows of events whose predecessor is missing.
func insertWaiting(ctx context.Context, tx *database.Tx, wait []*item) error {
	if len(wait) == 0 {
		return nil
	}
	values, args := database.Rows(tx.Dialect(), wait, func(i *item) []any {
		from := i.origin()
		return []any{i.ID, i.Subject, i.Version, stateWaiting, i.Raw, int64(i.Sequence), from.topic, from.headers, flag(i.forgotten)}
	})
	_, err := tx.ExecContext(ctx, `
		INSERT INTO parked (event_id, order_id, version, state, event, stream_sequence, subject, headers, forgotten) `+
		values+` ON CONFLICT (event_id) DO UPDATE SET headers = excluded.headers
			WHERE excluded.headers LIKE '%`+events.HeaderRoute+`%' AND parked.headers NOT LIKE '%`+events.HeaderRoute+`%'`, args...)
	if err != nil {
		return fmt.Errorf("insert waiting: %w", err)
	}
	return nil
}

// settleRows removes the rows of events that took effect, and the letters of those that were dead before.
func settleRows(ctx context.Context, tx *database.Tx, ids []string) error {
	if len(ids) == 0 {
		return nil
	}
	condition, arg := tx.Dialect().AnyOf(1, ids)
	rows, err := tx.QueryContext(ctx, `DELETE FROM parked WHERE event_id `+condition+` RETURNING event_id, attempts`, arg)
	if err != nil {
		return fmt.Errorf("delete parked: %w", err)
	}
	var failed []string
	err = each(rows, func() error {
		var id string
		var attempts int
		if err := rows.Scan(&id, &attempts); err != nil {
			return err
		}
		if attempts > 0 {
			failed = append(failed, letterID(id))
		}
		return nil
	})
	if err != nil || len(failed) == 0 {
		return err
	}
	condition, arg = tx.Dialect().AnyOf(1, failed)
	if _, err := tx.ExecContext(ctx, `DELETE FROM dead_letters WHERE id `+condition, arg); err != nil {
		return fmt.Errorf("delete settled letters: %w", err)
	}
	return nil
}

// deleteRows removes rows that hold nothing any more.
func deleteRows(ctx context.Context, q database.Querier, ids []string) error {
	if len(ids) == 0 {
		return nil
	}
	condition, arg := q.Dialect().AnyOf(1, ids)
	if _, err := q.ExecContext(ctx, `DELETE FROM parked WHERE event_id `+condition, arg); err != nil {
		return fmt.Errorf("delete parked: %w", err)
	}
	return nil
}

// countByOrder returns how many rows each of orders has.
func countByOrder(ctx context.Context, q database.Querier, orders []string) (map[string]int, error) {
	condition, arg := q.Dialect().AnyOf(1, orders)
	rows, err := q.QueryContext(ctx, `SELECT order_id, count(*) FROM parked WHERE order_id `+condition+` GROUP BY order_id`, arg)
	if err != nil {
		return nil, fmt.Errorf("count parked: %w", err)
	}
	out := map[string]int{}
	err = each(rows, func() error {
		var order string
		var n int
		if err := rows.Scan(&order, &n); err != nil {
			return err
		}
		out[order] = n
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("count parked: %w", err)
	}
	return out, nil
}
