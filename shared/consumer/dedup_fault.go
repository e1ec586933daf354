//go:build fault_dedup

package consumer

import (
	"context"
	"time"

	"github.com/pillarbox/pillarbox/shared/database"
)

const dedupFirst = true

func (c *Consumer) claimFirst(ctx context.Context, m members) error {
	if !c.Ordered {
		return nil
	}
	err := c.db.Tx(ctx, func(ctx context.Context, tx *database.Tx) error {
		if _, err := lockLanes(ctx, tx, m.orders, m.pos.lanes); err != nil {
			return err
		}
		return advance(ctx, tx, c.decide(m, m.pos, all).lanes)
	})
	time.Sleep(seededWindow)
	return err
}
