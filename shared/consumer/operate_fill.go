package consumer

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/events"
)

// Fill gives an order an event that never came, as the store has it. It becomes a waiting row like one that came
// too early, and takes effect in its turn; it goes on along the route of those that wait for it.
func (o *Operator) Fill(ctx context.Context, a Actor, order string, raw []byte) error {
	if !o.ordered {
		return fmt.Errorf("%w: %s keeps no order, nothing waits there", ErrRefused, o.name)
	}
	e, err := events.Decode(raw)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if e.Subject != order {
		return fmt.Errorf("%w: the event is of order %s", ErrInvalid, e.Subject)
	}
	target, err := json.Marshal(struct {
		Order   string `json:"order"`
		Version int64  `json:"version"`
		Event   string `json:"event_id"`
	}{order, e.Version, e.ID})
	if err != nil {
		return fmt.Errorf("fill: %w", err)
	}
	return o.act(ctx, a, "fill", string(target), func(ctx context.Context, tx *database.Tx) (string, error) {
		lanes, err := lockLanes(ctx, tx, []string{order}, nil)
		if err != nil {
			return "", err
		}
		if lane := lanes[order]; e.Version <= lane {
			return "", fmt.Errorf("%w: order %s has reached version %d already", ErrRefused, order, lane)
		}
		forgotten, err := RemovedUpTo(ctx, tx, o.name)
		if err != nil {
			return "", err
		}
		if lanes[order] == 0 && e.Time.Before(forgotten) {
			return "", fmt.Errorf("%w: version %d of order %s was handled before %s, up to when what was handled is forgotten",
				ErrRefused, e.Version, order, forgotten.Format(time.RFC3339))
		}
		var here int
		err = tx.QueryRowContext(ctx, `SELECT count(*) FROM parked WHERE order_id = $1 AND version = $2`, order, e.Version).Scan(&here)
		if err != nil {
			return "", fmt.Errorf("read parked: %w", err)
		}
		if here > 0 {
			return "", fmt.Errorf("%w: version %d of order %s is here", ErrRefused, e.Version, order)
		}
		var from origin
		err = tx.QueryRowContext(ctx, `SELECT subject, headers FROM parked WHERE order_id = $1 AND version > $2
			ORDER BY version LIMIT 1`, order, e.Version).Scan(&from.topic, &from.headers)
		if errors.Is(err, sql.ErrNoRows) {
			return "", fmt.Errorf("%w: nothing of order %s waits for version %d", ErrRefused, order, e.Version)
		}
		if err != nil {
			return "", fmt.Errorf("read parked: %w", err)
		}
		return fmt.Sprintf("version %d is here", e.Version),
			insertWaiting(ctx, tx, []*item{{Event: Event{Event: e, Raw: raw}, from: from}})
	})
}
