package orderdb

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pillarbox/pillarbox/shared/database"
)

// TimelineEvent is one event of an order's history.
type TimelineEvent struct {
	ID        string
	Type      string
	Version   int64
	At        time.Time
	Published bool // the broker has confirmed it
}

// Timeline reads up to limit events of an order above version after, by version, and whether more
// follow. An order that does not exist has no events.
func Timeline(ctx context.Context, q database.Querier, id string, after int64, limit int) (
	page []TimelineEvent, more bool, err error,
) {
	rows, err := q.QueryContext(ctx, `SELECT e.id, e.type, e.version, e.created_at,
			CASE WHEN o.event_id IS NULL THEN 1 ELSE 0 END
		FROM events e LEFT JOIN outbox o ON o.event_id = e.id
		WHERE e.order_id = $1 AND e.version > $2 ORDER BY e.version LIMIT $3`, id, after, limit+1)
	if err != nil {
		return nil, false, fmt.Errorf("read timeline: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		if len(page) == limit {
			return page, true, nil
		}
		var e TimelineEvent
		var at, published int64
		if err := rows.Scan(&e.ID, &e.Type, &e.Version, &at, &published); err != nil {
			return nil, false, fmt.Errorf("read timeline: %w", err)
		}
		e.At, e.Published = database.Time(at), published == 1
		page = append(page, e)
	}
	if err := rows.Err(); err != nil {
		return nil, false, fmt.Errorf("read timeline: %w", err)
	}
	return page, false, nil
}
