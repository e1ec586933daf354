package database_test

import (
	"context"
	"net/url"
	"strconv"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/migrations"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
)

// steps returns n migrations; the i-th makes table t<i> and fails when it is run twice.
func steps(n int) fstest.MapFS {
	files := fstest.MapFS{}
	for i := 1; i <= n; i++ {
		number := strconv.Itoa(i)
		file := &fstest.MapFile{Data: []byte("-- +goose Up\nCREATE TABLE t" + number + " (id BIGINT PRIMARY KEY);\n")}
		files["postgres/000"+number+"_t.sql"], files["sqlite/000"+number+"_t.sql"] = file, file
	}
	return files
}

// eachURL runs test with the URL of an empty database of each engine.
func eachURL(t *testing.T, test func(t *testing.T, url string)) {
	t.Helper()
	for name, make := range map[string]func(*testing.T) string{
		"sqlite": databasetest.SQLiteURL, "postgres": databasetest.PostgresURL,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, make(t))
		})
	}
}

func tables(t *testing.T, url string, o database.Options, n int) {
	t.Helper()
	db := open(t, url, o)
	for i := 1; i <= n; i++ {
		_, err := db.Read().ExecContext(t.Context(), "SELECT id FROM t"+strconv.Itoa(i))
		require.NoError(t, err)
	}
	_, err := db.Read().ExecContext(t.Context(), "SELECT id FROM t"+strconv.Itoa(n+1))
	require.Error(t, err)
}

func TestTenMigrateAtOnce(t *testing.T) {
	t.Parallel()
	eachURL(t, func(t *testing.T, url string) {
		o := database.Options{Schema: "shop"}
		var wg sync.WaitGroup
		errs := make([]error, 10)
		for i := range errs {
			wg.Go(func() { errs[i] = database.Migrate(t.Context(), url, steps(3), o) })
		}
		wg.Wait()
		for _, err := range errs {
			require.NoError(t, err)
		}
		tables(t, url, o, 3)
	})
}

func TestMigrateGoesOnAndLeavesNewerSchemasAlone(t *testing.T) {
	t.Parallel()
	eachURL(t, func(t *testing.T, url string) {
		o := database.Options{Schema: "shop"}
		for _, n := range []int{1, 3, 2, 3} {
			require.NoError(t, database.Migrate(t.Context(), url, steps(n), o))
		}
		tables(t, url, o, 3)
	})
}

func TestFailedMigrationLeavesTheOnesBefore(t *testing.T) {
	t.Parallel()
	eachURL(t, func(t *testing.T, url string) {
		o := database.Options{Schema: "shop"}
		broken := steps(3)
		bad := &fstest.MapFile{Data: []byte("-- +goose Up\nCREATE TABLE t3 (id BIGINT);\nINSERT INTO nowhere VALUES (1);\n")}
		broken["postgres/0003_t.sql"], broken["sqlite/0003_t.sql"] = bad, bad
		require.Error(t, database.Migrate(t.Context(), url, broken, o))
		tables(t, url, o, 2)
		require.NoError(t, database.Migrate(t.Context(), url, steps(3), o), "once the file is right it goes on")
	})
}

func TestEveryServicesSchemaFitsBothEngines(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"store", "mailer", "audit", "loyalty"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			databasetest.Each(t, name, func(t *testing.T, db *database.DB) {
				_, err := db.Read().ExecContext(t.Context(), `SELECT term FROM leases`)
				require.NoError(t, err)
			})
		})
	}
}

// role creates a PostgreSQL role for the test and returns the database's URL for it.
func role(t *testing.T, address, prefix string) (name, roleURL string) {
	t.Helper()
	u, err := url.Parse(address)
	require.NoError(t, err)
	name = prefix + u.Path[len(u.Path)-12:]
	admin := open(t, address, database.Options{MaxConns: 1})
	_, err = admin.Read().ExecContext(t.Context(), `CREATE ROLE `+name+` LOGIN PASSWORD 'secret'`)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		for _, statement := range []string{`DROP OWNED BY ` + name + ` CASCADE`, `DROP ROLE ` + name} {
			_, err := admin.Read().ExecContext(ctx, statement)
			require.NoError(t, err)
		}
	})
	u.User = url.UserPassword(name, "secret")
	return name, u.String()
}

// A service whose role may neither create schemas nor tables starts on a schema
// that another role has migrated, and can use the tables.
func TestMigrateForAnotherRole(t *testing.T) {
	t.Parallel()
	address := databasetest.PostgresURL(t)
	name, limited := role(t, address, "svc_")
	o := database.Options{Schema: service}
	require.Error(t, database.Migrate(t.Context(), limited, migrations.Of(service), o), "it lacks the right")

	o.GrantTo = name
	for range 2 { // the second start finds all done
		require.NoError(t, database.Migrate(t.Context(), address, migrations.Of(service), o))
	}
	o.GrantTo = ""
	require.NoError(t, database.Migrate(t.Context(), limited, migrations.Of(service), o))
	db := open(t, limited, o)
	require.NoError(t, put(t.Context(), db, "a"))
	_, err := db.Read().ExecContext(t.Context(), `INSERT INTO ledger (event_id, customer, order_id, order_version, points, reason, at)
		VALUES ('e', 'c', 'o', 1, 1, 'placed', 1)`)
	require.NoError(t, err, "with the sequence behind it")
	_, err = db.Read().ExecContext(t.Context(), `DROP TABLE lanes`)
	require.Error(t, err)
}

// A migration that waits for a busy table gives way and tries again.
func TestMigrateWaitsForABusyTable(t *testing.T) {
	t.Parallel()
	address := databasetest.PostgresURL(t)
	o := database.Options{Schema: "shop"}
	require.NoError(t, database.Migrate(t.Context(), address, steps(1), o))
	files := steps(1)
	files["postgres/0002_alter.sql"] = &fstest.MapFile{
		Data: []byte("-- +goose Up\nSET LOCAL lock_timeout = '150ms';\nALTER TABLE t1 ADD COLUMN more BIGINT;\n"),
	}
	db := open(t, address, o)
	migrated := make(chan error, 1)
	require.NoError(t, db.Tx(t.Context(), func(ctx context.Context, tx *database.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO t1 VALUES (1)`)
		require.NoError(t, err)
		go func() { migrated <- database.Migrate(t.Context(), address, files, o) }()
		require.Eventually(t, func() bool {
			var waiting bool
			require.NoError(t, db.Read().QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM pg_locks l
				JOIN pg_class c ON c.oid = l.relation WHERE c.relname = 't1' AND NOT l.granted)`).Scan(&waiting))
			return waiting
		}, patience, 5e6)
		return nil
	}))
	require.NoError(t, <-migrated)
	_, err := db.Read().ExecContext(t.Context(), `SELECT more FROM t1`)
	require.NoError(t, err)
}
