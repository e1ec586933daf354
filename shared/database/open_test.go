package database_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/pillarbox/pillarbox/migrations"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
)

func TestErrorsOfURLsShowNoSecret(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"postgres://u:hunter2@host:notaport/db",
		"postgres://u:hunter2%zz@host/db",
		"postgres://u:hunter2@host/db?sslmode=sometimes",
		"postgres://u:hunter2@host/db?sslmode=verify-full&sslrootcert=/no/such/hunter2",
		"mysql://u:hunter2@host/db",
		"hunter2",
		"",
	} {
		_, err := database.Open(url, database.Options{})
		require.Error(t, err, url)
		require.NotContains(t, err.Error(), "hunter2")
		err = database.Migrate(t.Context(), url, migrations.Of(service), database.Options{})
		require.Error(t, err, url)
		require.NotContains(t, err.Error(), "hunter2")
	}
	db := open(t, "postgres://u:hunter2@127.0.0.1:1/db", database.Options{})
	err := db.Ping(t.Context())
	require.Equal(t, database.ClassUnavailable, database.Classify(err))
	require.NotContains(t, err.Error(), "hunter2")
}

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	url := databasetest.SQLiteURL(t)
	for _, o := range []database.Options{{MaxConns: -1}, {StatementTimeout: -time.Second}} {
		_, err := database.Open(url, o)
		require.Error(t, err)
	}
}

func TestPostgresSessions(t *testing.T) {
	t.Parallel()
	_, url := databasetest.Postgres(t, service)
	// What the URL asks for does not weaken what the promises need.
	separator := "?"
	if strings.Contains(url, "?") {
		separator = "&"
	}
	url += separator + "synchronous_commit=off&search_path=public&lock_timeout=0"
	db := open(t, url, database.Options{Schema: service, StatementTimeout: 7 * time.Second, Application: "store"})
	for setting, want := range map[string]string{
		"synchronous_commit":                  "on",
		"search_path":                         `"` + service + `"`,
		"lock_timeout":                        "1s",
		"idle_in_transaction_session_timeout": "3s",
		"statement_timeout":                   "7s",
		"application_name":                    "store",
		"default_transaction_isolation":       "read committed",
	} {
		var got string
		require.NoError(t, db.Read().QueryRowContext(t.Context(), "SHOW "+setting).Scan(&got))
		require.Equal(t, want, got, setting)
	}
}

func TestStricterCommitIsLeftAlone(t *testing.T) {
	t.Parallel()
	_, url := databasetest.Postgres(t, service)
	db := open(t, url+"&synchronous_commit=remote_apply", database.Options{})
	var got string
	require.NoError(t, db.Read().QueryRowContext(t.Context(), "SHOW synchronous_commit").Scan(&got))
	require.Equal(t, "remote_apply", got)
}

func TestWarmOpensConnectionsAhead(t *testing.T) {
	t.Parallel()
	_, url := databasetest.Postgres(t, service)
	watch := open(t, url, database.Options{MaxConns: 1})
	db := open(t, url, database.Options{MaxConns: 5, Application: "warmed"})
	require.NoError(t, db.Warm(t.Context(), 100))
	var n int
	require.NoError(t, watch.Read().QueryRowContext(t.Context(), `SELECT COUNT(*) FROM pg_stat_activity
		WHERE datname = current_database() AND application_name = 'warmed'`).Scan(&n))
	require.Equal(t, 5, n)

	away := open(t, "postgres://u@127.0.0.1:1/db", database.Options{})
	require.Equal(t, database.ClassUnavailable, database.Classify(away.Warm(t.Context(), 2)))
}

// Two that warm one pool at once need all of its connections each.
func TestWarmTakesTurns(t *testing.T) {
	t.Parallel()
	_, url := databasetest.Postgres(t, service)
	for range 3 {
		db := open(t, url, database.Options{MaxConns: 4})
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		var callers errgroup.Group
		for range 3 {
			callers.Go(func() error { return db.Warm(ctx, 4) })
		}
		require.NoError(t, callers.Wait())
		cancel()
	}
	db := open(t, url, database.Options{})
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, db.Warm(ended, 1), context.Canceled)
}

func TestPing(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, service, func(t *testing.T, db *database.DB) {
		require.NoError(t, db.Ping(t.Context()))
	})
	t.Run("read-only", func(t *testing.T) {
		t.Parallel()
		_, url := databasetest.Postgres(t, service)
		db := open(t, url+"&default_transaction_read_only=on", database.Options{Schema: service})
		err := db.Ping(t.Context())
		require.Equal(t, database.ClassUnavailable, database.Classify(err), "%v", err)
		err = put(t.Context(), db, "a")
		require.Equal(t, database.ClassUnavailable, database.Classify(err), "%v", err)
	})
}

func TestClock(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, service, func(t *testing.T, db *database.DB) {
		now, err := db.Now(t.Context())
		require.NoError(t, err)
		require.WithinDuration(t, time.Now(), now, 5*time.Second)
		require.Equal(t, now, database.Time(database.Micros(now)))
		require.Equal(t, time.UTC, now.Location())
		// Inside a long transaction, too, the clock goes on.
		require.NoError(t, db.Tx(t.Context(), func(ctx context.Context, tx *database.Tx) error {
			read := func() (micros int64) {
				require.NoError(t, tx.QueryRowContext(ctx, "SELECT "+tx.Dialect().Now()).Scan(&micros))
				return micros
			}
			first := read()
			require.Eventually(t, func() bool { return read() > first }, patience, time.Millisecond)
			return nil
		}))
	})
}

func TestMultiRowInsert(t *testing.T) {
	t.Parallel()
	require.Equal(t, "($1,$2),($3,$4)", database.Values(2, 2))
	require.Equal(t, "($3,$4,$5)", database.In(3, 3))
	databasetest.Each(t, service, func(t *testing.T, db *database.DB) {
		const rows = 1200 // parameters beyond three digits
		var args []any
		for i := range rows {
			args = append(args, "order-"+strings.Repeat("x", i%5)+time.Duration(i).String(), 7)
		}
		require.NoError(t, db.Tx(t.Context(), func(ctx context.Context, tx *database.Tx) error {
			_, err := tx.ExecContext(ctx, `INSERT INTO lanes (order_id, version) VALUES `+database.Values(rows, 2), args...)
			return err
		}))
		var n int
		err := db.Read().QueryRowContext(t.Context(),
			`SELECT COUNT(*) FROM lanes WHERE version = $1 AND order_id IN `+database.In(2, 2), 7, args[0], args[2]).Scan(&n)
		require.NoError(t, err)
		require.Equal(t, 2, n)
	})
}

func TestSQLiteFile(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"sqlite:", "sqlite::memory:", "sqlite:/no/such/folder/x.db"} {
		_, err := database.Open(url, database.Options{})
		require.Error(t, err, url)
	}
	// A path is a path, whatever it looks like to a URL parser.
	path := filepath.Join(t.TempDir(), "a b%41?c#d.db")
	db, err := database.Open("sqlite:"+path, database.Options{})
	require.NoError(t, err)
	require.NoError(t, db.Ping(t.Context()))
	for _, file := range []string{path, path + "-wal"} {
		info, err := os.Stat(file)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode().Perm(), "customers' data is for the owner alone")
	}
	require.NoError(t, db.Close())
	_, err = os.Stat(path + "-wal")
	require.True(t, errors.Is(err, os.ErrNotExist), "an orderly end leaves one file")
}
