package orderdb

import (
	"context"
	"errors"
	"fmt"

	"github.com/pillarbox/pillarbox/shared/database"
)

// Body is one event of an order as it was, or is to be, published.
type Body struct {
	ID      string
	Version int64
	Payload []byte
}

// maxBodies is the size at which a page of bodies ends, in bytes.
const maxBodies = 4 << 20

// Bodies returns the events of an order from one version to another, at most limit and a page's size.
func Bodies(ctx context.Context, q database.Querier, id string, from, to int64, limit int) (page []Body, err error) {
	rows, err := q.QueryContext(ctx, `SELECT id, version, payload FROM events
		WHERE order_id = $1 AND version >= $2 AND version <= $3 ORDER BY version LIMIT $4`, id, from, to, limit)
	if err != nil {
		return nil, fmt.Errorf("read events: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	size := 0
	for rows.Next() {
		var b Body
		if err := rows.Scan(&b.ID, &b.Version, &b.Payload); err != nil {
			return nil, fmt.Errorf("read events: %w", err)
		}
		if size += len(b.Payload); size > maxBodies && len(page) > 0 {
			break
		}
		page = append(page, b)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read events: %w", err)
	}
	return page, nil
}
