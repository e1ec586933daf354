package database_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
)

func TestTxCommits(t *testing.T) {
	t.Parallel()
	databasetest.EachURL(t, service, func(t *testing.T, db *database.DB, url string) {
		require.NoError(t, put(t.Context(), db, "a"))
		require.Equal(t, 1, count(t, db, "a"))
		other := open(t, url, database.Options{Schema: service})
		require.Equal(t, 1, count(t, other, "a"))
	})
}

func TestTxReturnsTheErrorAsItIsAndRollsBack(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, service, func(t *testing.T, db *database.DB) {
		broken := errors.New("broken")
		err := db.Tx(t.Context(), func(ctx context.Context, tx *database.Tx) error {
			return errors.Join(insert(ctx, tx, "a"), broken)
		})
		require.ErrorIs(t, err, broken)
		require.Panics(t, func() {
			_ = db.Tx(t.Context(), func(ctx context.Context, tx *database.Tx) error {
				require.NoError(t, insert(ctx, tx, "a"))
				panic("impossible")
			})
		})
		require.Zero(t, count(t, db, "a"))
		require.NoError(t, put(t.Context(), db, "a"), "the connection and the locks are free again")
	})
}

// A cancelled transaction leaves neither a row nor a lock nor a lost connection:
// more of them than the pool has connections do no harm.
func TestCancelledTxRollsBackAndLeaksNothing(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, service, func(t *testing.T, db *database.DB) {
		for range 20 {
			ctx, cancel := context.WithCancel(t.Context())
			err := db.Tx(ctx, func(ctx context.Context, tx *database.Tx) error {
				require.NoError(t, insert(ctx, tx, "a"))
				cancel()
				return nil // do has not noticed
			})
			require.ErrorIs(t, err, context.Canceled)
			require.NotErrorIs(t, err, database.ErrCommitUnknown)
			require.Equal(t, database.ClassOther, database.Classify(err))
		}
		require.Zero(t, count(t, db, "a"))
		require.NoError(t, put(t.Context(), db, "a"))

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, put(ctx, db, "b"), context.Canceled)
		require.Zero(t, count(t, db, "b"))
	})
}

// A statement under way is interrupted, too.
func TestCancelledStatementRollsBack(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, service, func(t *testing.T, db *database.DB) {
		slow := `WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000000000) SELECT COUNT(*) FROM n`
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		err := db.Tx(ctx, func(ctx context.Context, tx *database.Tx) error {
			require.NoError(t, insert(ctx, tx, "a"))
			var n int64
			return tx.QueryRowContext(ctx, slow).Scan(&n)
		})
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, database.ClassUnavailable, database.Classify(err))
		require.Zero(t, count(t, db, "a"))
		require.NoError(t, put(t.Context(), db, "a"))
	})
}

// While one writer works another waits for its turn, no longer than its context.
func TestBeginHonoursTheDeadline(t *testing.T) {
	t.Parallel()
	db, url := databasetest.SQLite(t, service)
	other := open(t, url, database.Options{})
	for id, second := range map[string]*database.DB{"queue of the pool": db, "lock of the file": other} {
		require.NoError(t, db.Tx(t.Context(), func(context.Context, *database.Tx) error {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			err := put(ctx, second, id)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.Equal(t, database.ClassUnavailable, database.Classify(err))
			return nil
		}))
		require.NoError(t, put(t.Context(), second, id))
	}
}

// Reads go on while a writer is in its transaction, and see what is committed.
func TestReadersDoNotWaitForWriters(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, service, func(t *testing.T, db *database.DB) {
		require.NoError(t, db.Tx(t.Context(), func(ctx context.Context, tx *database.Tx) error {
			require.NoError(t, insert(ctx, tx, "a"))
			require.Zero(t, count(t, db, "a"))
			return nil
		}))
		require.Equal(t, 1, count(t, db, "a"))
	})
}

// Transactions that read before they write do not fail each other.
func TestConcurrentReadThenWrite(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, service, func(t *testing.T, db *database.DB) {
		const writers, rounds = 8, 10
		require.NoError(t, put(t.Context(), db, "a"))
		errs := make(chan error, writers*rounds)
		var wg sync.WaitGroup
		for range writers {
			wg.Go(func() {
				for range rounds {
					errs <- db.Tx(t.Context(), func(ctx context.Context, tx *database.Tx) error {
						var version int64
						err := tx.QueryRowContext(ctx,
							`SELECT version FROM lanes WHERE order_id = $1`+tx.Dialect().ForUpdate(), "a").Scan(&version)
						if err != nil {
							return err
						}
						_, err = tx.ExecContext(ctx, `UPDATE lanes SET version = $2 WHERE order_id = $1`, "a", version+1)
						return err
					})
				}
			})
		}
		wg.Wait()
		close(errs)
		for err := range errs {
			require.NoError(t, err)
		}
		var version int64
		require.NoError(t, db.Read().QueryRowContext(t.Context(), `SELECT version FROM lanes`).Scan(&version))
		require.Equal(t, int64(7+writers*rounds), version)
	})
}
