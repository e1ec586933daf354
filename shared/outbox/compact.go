package outbox

import (
	"context"
	"fmt"

	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/lease"
)

// compactAbove is the size of the outbox's files, indexes included, from which they are given back when it is empty.
const compactAbove = 8 << 20

// compact gives back to the disk what a backlog that is gone has left. Rows that are being committed are waited for
// by nobody: then the next purge tries again, and under steady load never, when what has grown is in use anyway.
func (l *leader) compact(ctx context.Context) error {
	if !l.r.db.Dialect().Postgres() {
		return nil
	}
	var large bool
	err := l.r.db.Read().QueryRowContext(ctx, `SELECT pg_total_relation_size('outbox') > $1 AND NOT EXISTS (SELECT 1 FROM outbox)`,
		compactAbove).Scan(&large)
	if err != nil || !large {
		return err
	}
	var done bool
	err = l.r.db.Tx(ctx, func(ctx context.Context, tx *database.Tx) error {
		if err := lease.Check(ctx, tx, leaseName, l.term); err != nil {
			return err
		}
		return tx.QueryRowContext(ctx, `SELECT compact_outbox()`).Scan(&done)
	})
	switch {
	case database.Classify(err) == database.ClassConflict: // rows are being committed
		return nil
	case err != nil:
		return fmt.Errorf("compact outbox: %w", err)
	case done:
		l.log.InfoContext(ctx, "outbox is empty and its files are given back")
	}
	return nil
}
