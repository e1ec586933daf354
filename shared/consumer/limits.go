package consumer

import (
	"context"
	"errors"
	"fmt"

	"github.com/pillarbox/pillarbox/shared/database"
)

// errFull: the table parked is at its limit. The consumer pauses for a while
// and tries again; nothing is lost, since the messages stay with the broker.
var errFull = errors.New("parked rows are at their limit")

// admit says which waiting rows there is room for. The total is what the last
// sweep counted and this replica added since, so it may be exceeded by what
// other replicas add within a second; the count per order is exact, and only
// looked up when the total leaves a doubt.
func (c *Consumer) admit(ctx context.Context, tx *database.Tx, wait []*item) (kept, refused []*item, err error) {
	total := int(c.parkedRows.Load())
	if len(wait) == 0 || c.catchingUp() || total+len(wait) <= min(c.ParkedPerOrder, c.ParkedTotal) {
		return wait, nil, nil
	}
	counts, err := countByOrder(ctx, tx, sorted(ordersOf(wait)))
	if err != nil {
		return nil, nil, err
	}
	for _, i := range wait {
		if total >= c.ParkedTotal || counts[i.Subject] >= c.ParkedPerOrder {
			refused = append(refused, i)
			continue
		}
		kept = append(kept, i)
		counts[i.Subject]++
		total++
	}
	return kept, refused, nil
}

// full describes the limit that was met.
func (c *Consumer) full() error {
	return fmt.Errorf("%w (%d for one order, %d in all)", errFull, c.ParkedPerOrder, c.ParkedTotal)
}
