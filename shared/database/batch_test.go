package database_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
)

// lanes returns the statement that inserts the lanes.
func lanes(db *database.DB, ids ...string) database.Statement {
	text, args := database.Rows(db.Dialect(), ids, func(id string) []any { return []any{id, 7} })
	return database.Statement{SQL: `INSERT INTO lanes (order_id, version) ` + text, Args: args}
}

func TestBatchIsOneTransaction(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, service, func(t *testing.T, db *database.DB) {
		require.NoError(t, db.Batch(t.Context(), []database.Statement{lanes(db, "a", "b"), lanes(db, "c")}))
		require.Equal(t, 1, count(t, db, "a"))
		require.Equal(t, 1, count(t, db, "c"))

		err := db.Batch(t.Context(), []database.Statement{lanes(db, "d", "e"), lanes(db, "f", "a")})
		require.Equal(t, database.ClassUnique, database.Classify(err))
		require.NotErrorIs(t, err, database.ErrCommitUnknown)
		for _, id := range []string{"d", "e", "f"} {
			require.Zero(t, count(t, db, id), "one that fails undoes the others")
		}
		require.NoError(t, db.Batch(t.Context(), []database.Statement{lanes(db, "d")}), "the connection is free again")

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		err = db.Batch(ctx, []database.Statement{lanes(db, "g")})
		require.ErrorIs(t, err, context.Canceled)
		require.Zero(t, count(t, db, "g"))
	})
}

// A batch whose connection breaks may have happened, whatever it did.
func TestBatchThatIsCut(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]bool{"before it arrives": true, "when it is done": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			direct, url := databasetest.Postgres(t, service)
			cut := open(t, cutter{before: before, word: "the one"}.serve(t, url), database.Options{Schema: service})
			// The id is not in what prepares the statement, only in what executes it.
			err := cut.Batch(t.Context(), []database.Statement{lanes(cut, "the one")})
			require.ErrorIs(t, err, database.ErrCommitUnknown)
			require.Equal(t, database.ClassUnavailable, database.Classify(err))
			require.Eventually(t, func() bool { return (count(t, direct, "the one") == 0) == before }, patience, 10*time.Millisecond)
		})
	}
}

func TestRows(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, service, func(t *testing.T, db *database.DB) {
		rows := [][]any{{"x", int64(3), []byte("b")}, {"", int64(1), []byte(nil)}, {"z", int64(2), []byte{0}}}
		text, args := database.Rows(db.Dialect(), rows, func(row []any) []any { return row })
		bytes := "BLOB"
		if db.Dialect().Postgres() {
			bytes = "BYTEA"
		}
		require.NoError(t, db.Batch(t.Context(), []database.Statement{
			{SQL: `CREATE TABLE many (a TEXT NOT NULL, b BIGINT NOT NULL, c ` + bytes + ` NOT NULL)`},
		}))
		require.NoError(t, db.Batch(t.Context(), []database.Statement{{SQL: `INSERT INTO many ` + text, Args: args}}))
		text, args = database.Rows(db.Dialect(), [][]any{{"alone", 0, []byte(nil)}}, func(row []any) []any { return row })
		require.NoError(t, db.Batch(t.Context(), []database.Statement{{SQL: `INSERT INTO many ` + text, Args: args}}))
		condition, value := db.Dialect().AnyOf(2, []string{"x", "z", "nobody"})
		var sum int64
		require.NoError(t, db.Read().QueryRowContext(t.Context(),
			`SELECT sum(b) FROM many WHERE b > $1 AND a `+condition, 0, value).Scan(&sum))
		require.Equal(t, int64(5), sum)
		var c []byte
		require.NoError(t, db.Read().QueryRowContext(t.Context(), `SELECT c FROM many WHERE b = 1`).Scan(&c))
		require.Empty(t, c)
	})
}
