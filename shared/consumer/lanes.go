package consumer

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
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
	var missing []any
	for _, order := range orders {
		if _, ok := known[order]; !ok {
			missing = append(missing, order, 0)
		}
	}
	if len(missing) > 0 {
		_, err := tx.ExecContext(ctx, `INSERT INTO lanes (order_id, version) VALUES `+
			database.Values(len(missing)/2, 2)+` ON CONFLICT (order_id) DO NOTHING`, missing...)
		if err != nil {
			return nil, fmt.Errorf("insert lanes: %w", err)
		}
	}
	lanes, err := lanesBy(ctx, tx, orders, tx.Dialect.ForUpdate())
	if err != nil {
		return nil, err
	}
	if len(lanes) != len(orders) {
		return nil, errLaneGone
	}
	return lanes, nil
}

func lanesBy(ctx context.Context, q database.Querier, orders []string, lock string) (map[string]int64, error) {
	in, args := inList(1, orders)
	rows, err := q.QueryContext(ctx, `SELECT order_id, version FROM lanes WHERE order_id IN `+in+` ORDER BY order_id`+lock, args...)
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
	args := make([]any, 0, 2*len(lanes))
	for order, version := range lanes {
		args = append(args, order, version)
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO lanes (order_id, version) VALUES `+database.Values(len(lanes), 2)+
		` ON CONFLICT (order_id) DO UPDATE SET version = excluded.version, updated_at = excluded.updated_at`, args...)
	if err != nil {
		return fmt.Errorf("advance lanes: %w", err)
	}
	return nil
}

// inList returns an IN list of values from parameter first on. It repeats the
// last value up to a power of two, so that the sizes of groups do not make a
// hundred different statements for the server to prepare.
func inList(first int, values []string) (string, []any) {
	size := 1
	for size < len(values) {
		size *= 2
	}
	args := make([]any, 0, size)
	for _, v := range values {
		args = append(args, v)
	}
	for len(args) < size {
		args = append(args, values[len(values)-1])
	}
	return database.In(first, size), args
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
