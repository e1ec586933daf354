package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/reconcile"
)

// Standing is what a row says of an event's mail.
type Standing struct {
	Delivery
	State   string
	Age     time.Duration // since the row was written
	Assumed bool          // accepted, and nobody has seen it published
}

// Standings returns the rows of the given events.
func Standings(ctx context.Context, q database.Querier, now string, eventIDs []string) ([]Standing, error) {
	condition, arg := q.Dialect().AnyOf(1, eventIDs)
	rows, err := q.QueryContext(ctx, `
		SELECT id, event_id, order_id, version, recipient, template, staged_name, message_id, state, `+now+` - created_at, assumed
		FROM deliveries WHERE event_id `+condition, arg)
	if err != nil {
		return nil, fmt.Errorf("look up deliveries: %w", err)
	}
	var found []Standing
	err = each(rows, func(scan func(...any) error) error {
		var s Standing
		var age, assumed int64
		err := scan(&s.ID, &s.EventID, &s.OrderID, &s.Version, &s.Recipient, &s.Template, &s.StagedName, &s.MessageID, &s.State, &age, &assumed)
		s.Assumed = assumed == 1
		s.Age = time.Duration(age) * time.Microsecond
		found = append(found, s)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("look up deliveries: %w", err)
	}
	return found, nil
}

// Held pages through the deliveries of orders' events by id. requests is the template of mails that belong to no order.
func Held(ctx context.Context, q database.Querier, w reconcile.Window, requests, after string) (held []reconcile.HeldEvent, next string, err error) {
	query := `SELECT id, event_id, order_id, version FROM deliveries WHERE id > $1 AND created_at >= $2 AND template <> $3`
	args := []any{after, database.Micros(w.Since), requests, reconcile.MaxEvents}
	if w.Order != "" {
		query += ` AND order_id = $5`
		args = append(args, w.Order)
	}
	rows, err := q.QueryContext(ctx, query+` ORDER BY id LIMIT $4`, args...)
	if err != nil {
		return nil, "", fmt.Errorf("list deliveries: %w", err)
	}
	err = each(rows, func(scan func(...any) error) error {
		var h reconcile.HeldEvent
		err := scan(&after, &h.ID, &h.Order, &h.Version)
		held = append(held, h)
		return err
	})
	if err != nil {
		return nil, "", fmt.Errorf("list deliveries: %w", err)
	}
	if len(held) == reconcile.MaxEvents {
		next = after
	}
	return held, next, nil
}
