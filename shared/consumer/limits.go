package consumer

import (
	"context"
	"errors"
	"fmt"

	"github.com/pillarbox/pillarbox/shared/database"
)

// errFull: the table parked is at its limit. The consumer pauses for a while
// and tries again; nothing is lost, since the messages stay with the broker.
var errFull = errors.New("what waits for another attempt or a person is at its limit")

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
	return fmt.Errorf("%w (%d parked events for one order, %d in all)", errFull, c.ParkedPerOrder, c.ParkedTotal)
}

// roomForLetter reports errFull when a new dead letter would be one too many: nobody has settled any for long, and none is
// ever removed for that reason. A letter that stands already may always be written again.
func (c *Consumer) roomForLetter(ctx context.Context, tx *database.Tx, id string) error {
	var others int
	err := tx.QueryRowContext(ctx, `SELECT CASE WHEN EXISTS (SELECT 1 FROM dead_letters WHERE id = $1) THEN 0
		ELSE (SELECT count(*) FROM (SELECT 1 FROM dead_letters WHERE skipped = 0 LIMIT $2) AS first) END`, id, c.Letters).Scan(&others)
	if err != nil {
		return fmt.Errorf("count dead letters: %w", err)
	}
	if others >= c.Letters {
		return fmt.Errorf("%w (%d dead letters)", errFull, c.Letters)
	}
	return nil
}
