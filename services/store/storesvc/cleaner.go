package storesvc

import (
	"context"
	"log/slog"
	"time"

	"github.com/pillarbox/pillarbox/services/store/internal/orderdb"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/logs"
)

const (
	cleanEvery   = time.Minute
	cleanBite    = 500
	cleanTimeout = 5 * time.Second
)

// cleaner removes answers to idempotency keys that are older than their retention, in small
// transactions. Every replica runs one: they pass over each other's rows.
type cleaner struct {
	retention time.Duration
	db        *database.DB
	log       *slog.Logger
}

func (c *cleaner) run(ctx context.Context) {
	tick := time.NewTicker(cleanEvery)
	defer tick.Stop()
	for {
		c.clean(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (c *cleaner) clean(ctx context.Context) {
	for ctx.Err() == nil {
		bite, cancel := context.WithTimeout(ctx, cleanTimeout)
		removed, err := orderdb.RemoveAnswers(bite, c.db, c.retention, cleanBite)
		cancel()
		if err != nil && ctx.Err() == nil {
			c.log.WarnContext(ctx, "old answers stay until the next round", logs.Error, err)
		}
		if err != nil || removed < cleanBite {
			return
		}
	}
}
