package database_test

import (
	"context"
	"testing"

	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
	"github.com/stretchr/testify/require"
)

func TestTxCommitsAndRollsBack(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		ctx := t.Context()
		require.NoError(t, db.Ping(ctx))
		require.NoError(t, db.Warm(ctx, 4))
		require.NoError(t, db.Tx(ctx, func(ctx context.Context, tx *database.Tx) error {
			_, err := tx.ExecContext(ctx, `INSERT INTO lanes (version, order_id) VALUES ($2, $1)`, "a", 7)
			return err
		}))
		var version int64
		require.NoError(t, db.Read().QueryRowContext(ctx, `SELECT version FROM lanes WHERE order_id = $1`, "a").Scan(&version))
		require.Equal(t, int64(7), version)
	})
}
