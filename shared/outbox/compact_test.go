package outbox_test

import (
	"context"
	"testing"

	"github.com/pillarbox/pillarbox/shared/broker/brokertest"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
	"github.com/pillarbox/pillarbox/shared/outbox"
	"github.com/stretchr/testify/require"
)

// TestABacklogThatIsGoneLeavesNoFiles: what is being committed meanwhile stays and is published.
func TestABacklogThatIsGoneLeavesNoFiles(t *testing.T) {
	t.Parallel()
	db, _ := databasetest.Postgres(t, "store")
	b := &bundle{t: t, db: db, conn: brokertest.Connect(t, brokertest.Server(t))}
	b.exec(`ALTER TABLE outbox SET (autovacuum_enabled = false)`) // what it gives back is not the matter here
	b.exec(`INSERT INTO outbox (seq, event_id, order_id, size) SELECT n, 'event-' || n, 'order-' || n, 1 FROM generate_series(1, 80000) n`)
	b.exec(`DELETE FROM outbox`)
	size := func() int64 { return b.number(`SELECT pg_total_relation_size('outbox')`) }
	require.Greater(t, size(), int64(8<<20))
	looks, hook := looking()
	late := row("late", 1, 100)
	require.NoError(t, db.Tx(t.Context(), func(ctx context.Context, tx *database.Tx) error {
		if err := outbox.Append(ctx, tx, []outbox.Row{late}); err != nil {
			return err
		}
		b.relay(options{hook: hook, purgeEvery: often})
		b.purgedTwice(looks)
		require.Greater(t, size(), int64(8<<20), "a transaction was run over")
		return nil
	}))
	b.drained()
	b.eventually(func() bool { return size() < 1<<20 }, "the files are still there")
	b.commit(row("late", 2, 100))
	b.drained()
	require.Len(t, b.stream(), 2)
}
