package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/retention"
)

// HoldsLane is when an order's lane stays: a delivery of it is not over, so that a redrive may still ask what the lane says.
const HoldsLane = `EXISTS (SELECT 1 FROM deliveries d WHERE d.order_id = lanes.order_id AND d.state <> 'accepted')`

// Retention are the rules by which deliveries go that are over: accepted ones, and refused ones whose dead letter somebody
// has settled. Those that wait for a mail server, and those of unknown outcome, are obligations.
func Retention() []retention.Rule {
	return []retention.Rule{
		{Name: "deliveries", Bite: retention.Rows("deliveries", "id", "accepted_at", "state = 'accepted'"),
			Oldest: `SELECT min(accepted_at) FROM deliveries WHERE state = 'accepted'`},
		{Name: "refused_deliveries", Bite: removeRefused},
	}
}

func removeRefused(ctx context.Context, tx *database.Tx, before time.Time, limit int) (int64, error) {
	// By id, as the index has it: there are few.
	done, err := tx.ExecContext(ctx, `WITH old AS MATERIALIZED (
			SELECT id FROM deliveries WHERE state = 'refused' AND settled_at < $1
				AND NOT EXISTS (SELECT 1 FROM dead_letters l WHERE l.id = 'event-' || deliveries.event_id)
			ORDER BY id LIMIT $2`+tx.Dialect().SkipLocked()+`)
		DELETE FROM deliveries WHERE id IN (SELECT id FROM old)`, database.Micros(before), limit)
	if err != nil {
		return 0, fmt.Errorf("delete refused deliveries: %w", err)
	}
	return done.RowsAffected()
}
