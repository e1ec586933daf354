package consumer

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/pillarbox/pillarbox/shared/database"
)

// errLaneGone: a lane was removed between its insert and its lock. The group is done again.
var errLaneGone = errors.New("lane row is gone")

// readLanes returns the lanes of orders, without a lock.
func readLanes(ctx context.Context, q database.Querier, orders []string) (map[string]int64, error) {
	return lanesBy(ctx, q, orders, "")
}

// lockLanes makes the missing lanes and locks all, in the order of their ids.
//
// The inserts come first and hold nothing but their own new rows, which no
// lock waits for; the locks are then taken in sorted order: so two groups with
// common orders never deadlock. orders must be sorted.
func lockLanes(ctx context.Context, tx *database.Tx, orders []string, known map[string]int64) (map[string]int64, error) {
	missing := map[string]int64{}
	for _, order := range orders {
		if _, ok := known[order]; !ok {
			missing[order] = 0
		}
	}
	if len(missing) > 0 {
		values, args := laneRows(tx.Dialect(), missing)
		if _, err := tx.ExecContext(ctx, `INSERT INTO lanes (order_id, version) `+values+` ON CONFLICT (order_id) DO NOTHING`, args...); err != nil {
			return nil, fmt.Errorf("insert lanes: %w", err)
		}
	}
	lanes, err := lanesBy(ctx, tx, orders, tx.Dialect().ForUpdate())
	if err != nil {
		return nil, err
	}
	if len(lanes) != len(orders) {
		return nil, errLaneGone
	}
	return lanes, nil
}

func lanesBy(ctx context.Context, q database.Querier, orders []string, lock string) (map[string]int64, error) {
	condition, arg := q.Dialect().AnyOf(1, orders)
	rows, err := q.QueryContext(ctx, `SELECT order_id, version FROM lanes WHERE order_id `+condition+` ORDER BY order_id`+lock, arg)
	if err != nil {
		return nil, fmt.Errorf("read lanes: %w", err)
	}
	lanes := make(map[string]int64, len(orders))
	err = each(rows, func() error {
		var order string
		var version int64
		if err := rows.Scan(&order, &version); err != nil {
			return err
		}
		lanes[order] = version
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read lanes: %w", err)
	}
	return lanes, nil
}

// advance writes the new versions of lanes that this transaction has locked.
func advance(ctx context.Context, tx *database.Tx, lanes map[string]int64) error {
	if len(lanes) == 0 {
		return nil
	}
	values, args := laneRows(tx.Dialect(), lanes)
	_, err := tx.ExecContext(ctx, `INSERT INTO lanes (order_id, version) `+values+
		` ON CONFLICT (order_id) DO UPDATE SET version = excluded.version, updated_at = excluded.updated_at`, args...)
	if err != nil {
		return fmt.Errorf("advance lanes: %w", err)
	}
	return nil
}

// laneRows are rows to insert, in the order of their ids.
func laneRows(d database.Dialect, lanes map[string]int64) (text string, args []any) {
	return database.Rows(d, slices.Sorted(maps.Keys(lanes)), func(order string) []any { return []any{order, lanes[order]} })
}

// each calls scan for every row and closes rows.
func each(rows *sql.Rows, scan func() error) (err error) {
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		if err := scan(); err != nil {
			return err
		}
	}
	return rows.Err()
}

// sorted returns the distinct values of all lists, sorted.
func sorted(lists ...[]string) []string {
	all := slices.Concat(lists...)
	slices.Sort(all)
	return slices.Compact(all)
}
