package auditlog

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/pillarbox/pillarbox/shared/consumer"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/reconcile"
)

// Evidence is what the log proves of events: an entry is the effect.
type Evidence struct{}

// Proofs finds the events that have an entry.
func (Evidence) Proofs(ctx context.Context, q database.Querier, ids []string) (found map[string]consumer.Proof, err error) {
	args := make([]any, len(ids))
	for n, id := range ids {
		args[n] = id
	}
	rows, err := q.QueryContext(ctx, `SELECT event_id FROM entries WHERE event_id IN `+database.In(1, len(args)), args...)
	if err != nil {
		return nil, fmt.Errorf("look up entries: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	found = map[string]consumer.Proof{}
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			return nil, fmt.Errorf("look up entries: %w", err)
		}
		found[id] = consumer.Proof{In: reconcile.Done}
	}
	return found, rows.Err()
}

// Held pages through the entries about orders, by position.
func (Evidence) Held(ctx context.Context, q database.Querier, w reconcile.Window, cursor string) (held []reconcile.HeldEvent, next string, err error) {
	after := int64(0)
	if cursor != "" {
		if after, err = strconv.ParseInt(cursor, 10, 64); err != nil {
			return nil, "", fmt.Errorf("%w: cursor", reconcile.ErrInvalid)
		}
	}
	query := `SELECT position, event_id, order_id, order_version FROM entries
		WHERE position > $1 AND recorded_at >= $2 AND type LIKE 'order.%'`
	args := []any{after, database.Micros(w.Since), reconcile.MaxEvents}
	if w.Order != "" {
		query += ` AND order_id = $4`
		args = append(args, w.Order)
	}
	rows, err := q.QueryContext(ctx, query+` ORDER BY position LIMIT $3`, args...)
	if err != nil {
		return nil, "", fmt.Errorf("list entries: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var h reconcile.HeldEvent
		if err := rows.Scan(&after, &h.ID, &h.Order, &h.Version); err != nil {
			return nil, "", fmt.Errorf("list entries: %w", err)
		}
		held = append(held, h)
	}
	if len(held) == reconcile.MaxEvents {
		next = strconv.FormatInt(after, 10)
	}
	return held, next, rows.Err()
}
