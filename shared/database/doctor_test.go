package database_test

import (
	"context"
	neturl "net/url"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/migrations"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
	"github.com/pillarbox/pillarbox/shared/database/databasetest/postgres"
	"github.com/pillarbox/pillarbox/shared/doctor"
)

// examined are the codes of what is found without those of the role: tests run as the superuser.
func examined(t *testing.T, db *database.DB, e database.Examination) []doctor.Code {
	t.Helper()
	var r doctor.Report
	db.Examine(t.Context(), e, &r)
	require.Empty(t, r.Unseen)
	codes := []doctor.Code{}
	for _, code := range r.Codes() {
		if code != doctor.RoleTooStrong {
			codes = append(codes, code)
		}
	}
	return codes
}

// besides leaves out what the test's server was set up with: it need not survive a power loss.
func besides(codes []doctor.Code) []doctor.Code {
	return slices.DeleteFunc(codes, func(c doctor.Code) bool {
		return c == doctor.PGFsync || c == doctor.PGFullPages
	})
}

// outside is the outcome of a look at a file from outside.
func outside(t *testing.T, path string, owned bool) []doctor.Code {
	t.Helper()
	var r doctor.Report
	require.NoError(t, database.ExamineFile(t.Context(), path, owned, migrations.Of("audit"), &r))
	require.Empty(t, r.Unseen)
	return append([]doctor.Code{}, r.Codes()...)
}

func TestNothingIsFoundInOrder(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "audit", func(t *testing.T, db *database.DB) {
		require.Empty(t, besides(examined(t, db, database.Examination{Migrations: migrations.Of("audit")})))
	})
}

func TestSchemaVersions(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		statement string
		want      doctor.Code
	}{
		"behind":     {`DELETE FROM goose_db_version WHERE version_id = (SELECT max(version_id) FROM goose_db_version)`, doctor.SchemaBehind},
		"never":      {`DROP TABLE goose_db_version`, doctor.SchemaBehind},
		"ahead":      {`INSERT INTO goose_db_version (version_id, is_applied) VALUES (99, TRUE)`, doctor.SchemaAhead},
		"undone":     {`INSERT INTO goose_db_version (version_id, is_applied) VALUES (1, FALSE), (99, TRUE)`, doctor.SchemaBroken},
		"in between": {`UPDATE goose_db_version SET version_id = 98 WHERE version_id = 1`, doctor.SchemaBroken},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			databasetest.Each(t, "audit", func(t *testing.T, db *database.DB) {
				require.NoError(t, db.Tx(t.Context(), func(ctx context.Context, tx *database.Tx) error {
					_, err := tx.ExecContext(ctx, c.statement)
					return err
				}))
				require.Equal(t, []doctor.Code{c.want}, besides(examined(t, db, database.Examination{Migrations: migrations.Of("audit")})))
			})
		})
	}
}

func TestMigrationsWithoutNumbersCannotBeCompared(t *testing.T) {
	t.Parallel()
	db, _ := databasetest.SQLite(t, "audit")
	var r doctor.Report
	db.Examine(t.Context(), database.Examination{Migrations: fstest.MapFS{"sqlite/first.sql": {}}}, &r)
	require.Empty(t, r.Findings)
	require.Len(t, r.Unseen, 1)
}

func TestClocksThatDiffer(t *testing.T) {
	t.Parallel()
	db, _ := databasetest.Postgres(t, "audit")
	for _, c := range []struct {
		skew  time.Duration
		found bool
	}{{0, false}, {time.Minute, true}, {-time.Minute, true}, {500 * time.Millisecond, false}} {
		clock := func() time.Time { return time.Now().Add(c.skew) }
		got := besides(examined(t, db, database.Examination{Clock: clock, MaxSkew: 10 * time.Second}))
		require.Equal(t, c.found, len(got) == 1 && got[0] == doctor.ClockDatabase, "%s: %v", c.skew, got)
	}
	// An answer that took a minute says nothing about a difference of less than half of it.
	calls := time.Duration(0)
	slow := func() time.Time { calls++; return time.Now().Add(calls * time.Minute) }
	var r doctor.Report
	db.Examine(t.Context(), database.Examination{Clock: slow, MaxSkew: 6 * time.Minute}, &r)
	require.NotContains(t, r.Codes(), doctor.ClockDatabase)
}

// TestPostgresThatLosesCommits has servers of its own, since the settings are the server's.
func TestPostgresThatLosesCommits(t *testing.T) {
	t.Parallel()
	for setting, want := range map[string]doctor.Code{
		"fsync": doctor.PGFsync, "full_page_writes": doctor.PGFullPages, "synchronous_commit": doctor.PGSyncCommit,
	} {
		t.Run(setting, func(t *testing.T) {
			t.Parallel()
			databasetest.PostgresURL(t) // skips where there is no PostgreSQL
			server, err := postgres.Start(t.Context(), postgres.Config{Durable: true, Settings: map[string]string{setting: "off"}})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, server.Close()) })
			db, err := database.Open(server.URL(), database.Options{Schema: "audit"})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, db.Close()) })
			require.Equal(t, []doctor.Code{want}, examined(t, db, database.Examination{}))
		})
	}
}

func TestRolesAndTables(t *testing.T) {
	t.Parallel()
	owner, url := databasetest.Postgres(t, "audit")
	do := func(statement string) {
		t.Helper()
		_, err := owner.Read().ExecContext(t.Context(), statement)
		require.NoError(t, err, statement)
	}
	var name string
	require.NoError(t, owner.Read().QueryRowContext(t.Context(), `SELECT current_database()`).Scan(&name))
	role := "doctor_" + name
	do(`CREATE ROLE ` + role + ` LOGIN`)
	t.Cleanup(func() {
		for _, statement := range []string{`REASSIGN OWNED BY ` + role + ` TO CURRENT_USER`, `DROP OWNED BY ` + role, `DROP ROLE ` + role} {
			_, err := owner.Read().ExecContext(context.WithoutCancel(t.Context()), statement)
			require.NoError(t, err)
		}
	})
	do(`GRANT USAGE ON SCHEMA audit TO ` + role)
	do(`GRANT SELECT, INSERT ON ALL TABLES IN SCHEMA audit TO ` + role)
	db, err := database.Open(as(t, url, role), database.Options{Schema: "audit"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	codes := func() []doctor.Code {
		var r doctor.Report
		db.Examine(t.Context(), database.Examination{Migrations: migrations.Of("audit")}, &r)
		require.Empty(t, r.Unseen)
		return besides(r.Codes())
	}
	require.Empty(t, codes())

	do(`REVOKE INSERT ON audit.parked FROM ` + role)
	require.Equal(t, []doctor.Code{doctor.RoleTooWeak}, codes())
	do(`GRANT INSERT ON audit.parked TO ` + role)
	do(`GRANT CREATE ON SCHEMA audit TO ` + role)
	require.Equal(t, []doctor.Code{doctor.RoleTooStrong}, codes())
	do(`REVOKE CREATE ON SCHEMA audit FROM ` + role)
	do(`ALTER TABLE audit.leases OWNER TO ` + role)
	require.Equal(t, []doctor.Code{doctor.RoleTooStrong}, codes())
	do(`ALTER TABLE audit.leases OWNER TO CURRENT_USER`)
	do(`GRANT SELECT, INSERT ON audit.leases TO ` + role)
	do(`ALTER TABLE audit.parked SET UNLOGGED`)
	require.Equal(t, []doctor.Code{doctor.PGUnlogged}, codes())
	do(`ALTER TABLE audit.parked SET LOGGED`)
	require.Empty(t, codes())

	// What a role says counts too, though the services' sessions overrule it.
	do(`ALTER ROLE ` + role + ` SET synchronous_commit = off`)
	second, err := database.Open(as(t, url, role), database.Options{Schema: "audit"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, second.Close()) })
	require.Equal(t, []doctor.Code{doctor.PGSyncCommit}, besides(examined(t, second, database.Examination{})))
}

func TestSQLiteSettingsOfTheServiceItself(t *testing.T) {
	t.Parallel()
	db, err := database.Open(databasetest.SQLiteURL(t), database.Options{MaxConns: 1})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	require.Empty(t, examined(t, db, database.Examination{}))
	_, err = db.Read().ExecContext(t.Context(), "PRAGMA synchronous = NORMAL")
	require.NoError(t, err)
	require.Equal(t, []doctor.Code{doctor.SQLiteSync}, examined(t, db, database.Examination{}))
}

func TestSQLiteFileFromOutside(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.db")
	url := "sqlite:" + path
	require.NoError(t, database.Migrate(t.Context(), url, migrations.Of("audit"), database.Options{}))
	files := func() []string {
		found, err := filepath.Glob(path + "*")
		require.NoError(t, err)
		return found
	}
	stopped := files()
	require.Equal(t, []string{path}, stopped)
	require.Empty(t, outside(t, path, true))
	require.Equal(t, stopped, files(), "a look at a stopped file leaves nothing behind")

	// With a service at work: it must not notice.
	db, err := database.Open(url, database.Options{})
	require.NoError(t, err)
	require.NoError(t, db.Tx(t.Context(), func(ctx context.Context, tx *database.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO goose_db_version (version_id, is_applied) VALUES (99, TRUE)`)
		require.NoError(t, err)
		require.Empty(t, outside(t, path, false), "within the service's transaction its state of before is seen")
		return err
	}))
	require.Equal(t, []doctor.Code{doctor.SchemaAhead}, outside(t, path, false), "what is only in the log is seen")
	require.NoError(t, db.Ping(t.Context()))
	require.NoError(t, db.Close())

	require.NoError(t, os.Link(path, path+".copy"))
	require.Equal(t, []doctor.Code{doctor.SchemaAhead, doctor.SQLiteLinks}, outside(t, path, true))
	require.NoError(t, os.Remove(path+".copy"))
	require.NoError(t, os.Rename(path, path+".moved"))
	require.NoError(t, os.Symlink(path+".moved", path))
	require.Contains(t, outside(t, path, true), doctor.SQLiteLinks)
	require.Error(t, database.ExamineFile(t.Context(), path+".none", true, nil, &doctor.Report{}))
	require.NoFileExists(t, path+".none")
}

// TestSQLiteFileOfAnotherMode: some other program may have changed it.
func TestSQLiteFileOfAnotherMode(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.db")
	url := "sqlite:" + path
	require.NoError(t, database.Migrate(t.Context(), url, migrations.Of("audit"), database.Options{}))
	db, err := database.Open(url, database.Options{MaxConns: 1})
	require.NoError(t, err)
	require.NoError(t, db.Close())
	// The two bytes of the file's header that say how it is read and written: 1 is a rollback journal, 2 is WAL.
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	_, err = file.WriteAt([]byte{1, 1}, 18)
	require.NoError(t, err)
	require.NoError(t, file.Close())
	require.Equal(t, []doctor.Code{doctor.SQLiteJournal}, outside(t, path, true))
}

// as is a database's URL under another role.
func as(t *testing.T, address, role string) string {
	t.Helper()
	u, err := neturl.Parse(address)
	require.NoError(t, err)
	u.User = neturl.User(role)
	return u.String()
}
