package database_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
	"github.com/pillarbox/pillarbox/shared/database/databasetest/postgres"
)

func terminateOthers(t *testing.T, db *database.DB) {
	t.Helper()
	_, err := db.Read().ExecContext(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE datname = current_database() AND pid <> pg_backend_pid()`)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		var n int
		require.NoError(t, db.Read().QueryRowContext(t.Context(), `SELECT COUNT(*) FROM pg_stat_activity
			WHERE datname = current_database() AND pid <> pg_backend_pid()`).Scan(&n))
		return n == 0
	}, patience, 5*time.Millisecond)
}

// All pooled connections are lost at once: neither a transaction nor a read fails.
func TestLostPooledConnectionsAreReplaced(t *testing.T) {
	t.Parallel()
	db, url := databasetest.Postgres(t, service)
	admin := open(t, url, database.Options{MaxConns: 1})
	for round, id := range []string{"a", "b", "c"} {
		require.NoError(t, db.Warm(t.Context(), 8))
		terminateOthers(t, admin)
		if round%2 == 0 {
			require.NoError(t, put(t.Context(), db, id))
		}
		for range 10 {
			require.Equal(t, 1-round%2, count(t, db, id))
		}
	}
}

func TestConnectionLostInsideATransaction(t *testing.T) {
	t.Parallel()
	db, url := databasetest.Postgres(t, service)
	admin := open(t, url, database.Options{MaxConns: 1})
	err := db.Tx(t.Context(), func(ctx context.Context, tx *database.Tx) error {
		require.NoError(t, insert(ctx, tx, "a"))
		terminateOthers(t, admin)
		return insert(ctx, tx, "b")
	})
	require.Equal(t, database.ClassUnavailable, database.Classify(err), "%v", err)
	require.NoError(t, put(t.Context(), db, "a"))
	require.Zero(t, count(t, db, "b"))
}

// A session that froze inside a transaction loses it, so that its locks do not
// outlive the broker's patience.
func TestIdleTransactionIsEnded(t *testing.T) {
	t.Parallel()
	db, url := databasetest.Postgres(t, service)
	other := open(t, url, database.Options{Schema: service})
	err := db.Tx(t.Context(), func(ctx context.Context, tx *database.Tx) error {
		require.NoError(t, insert(ctx, tx, "a"))
		require.Eventually(t, func() bool { return put(ctx, other, "a") == nil }, patience, 10*time.Millisecond)
		return insert(ctx, tx, "b")
	})
	require.Equal(t, database.ClassConflict, database.Classify(err), "%v", err)
	require.NoError(t, put(t.Context(), db, "b"))
}

func TestServerCrashHeals(t *testing.T) {
	t.Parallel()
	s, db := server(t)
	require.NoError(t, db.Warm(t.Context(), 4))
	require.NoError(t, put(t.Context(), db, "before"))

	err := db.Tx(t.Context(), func(ctx context.Context, tx *database.Tx) error {
		require.NoError(t, insert(ctx, tx, "torn"))
		require.NoError(t, s.Stop(postgres.Immediate))
		return insert(ctx, tx, "torn too")
	})
	require.Equal(t, database.ClassUnavailable, database.Classify(err), "%v", err)
	err = put(t.Context(), db, "down")
	require.Equal(t, database.ClassUnavailable, database.Classify(err), "%v", err)
	require.NotErrorIs(t, err, database.ErrCommitUnknown)
	err = db.Ping(t.Context())
	require.Equal(t, database.ClassUnavailable, database.Classify(err), "%v", err)

	require.NoError(t, s.Start(t.Context()))
	require.NoError(t, put(t.Context(), db, "after"), "the first transaction works")
	require.NoError(t, db.Ping(t.Context()))
	require.Equal(t, []int{1, 0, 0, 1}, []int{
		count(t, db, "before"), count(t, db, "torn"), count(t, db, "down"), count(t, db, "after"),
	})
	// And once more with all connections idle while the server restarts.
	require.NoError(t, db.Warm(t.Context(), 4))
	require.NoError(t, s.Restart(t.Context(), postgres.Fast))
	for range 5 {
		require.Equal(t, 1, count(t, db, "after"))
	}
}
