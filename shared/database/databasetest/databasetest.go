// Package databasetest gives each test a migrated database of its own, on
// PostgreSQL and on SQLite. Only tests import it.
//
// On PostgreSQL it keeps one migrated template database per service and schema
// version, made by whichever test process comes first, and copies it for each
// test. A test process that is killed leaves its databases behind; later ones
// drop them after some hours.
package databasetest

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/migrations"
	"github.com/pillarbox/pillarbox/shared/database"
)

// EnvURL names the environment variable with the URL of a PostgreSQL server whose user may create databases.
const EnvURL = "PILLARBOX_TEST_POSTGRES_URL"

// Each runs test as subtests "sqlite" and "postgres", in parallel, with
// an open DB with service's migrations applied. Without a PostgreSQL server that subtest is
// skipped, or fails when CI is set.
func Each(t *testing.T, service string, test func(t *testing.T, db *database.DB)) {
	t.Helper()
	EachURL(t, service, func(t *testing.T, db *database.DB, _ string) { test(t, db) })
}

// EachURL is Each for tests that open the database a second time.
func EachURL(t *testing.T, service string, test func(t *testing.T, db *database.DB, url string)) {
	t.Helper()
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		db, url := SQLite(t, service)
		test(t, db, url)
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		db, url := Postgres(t, service)
		test(t, db, url)
	})
}

// Postgres returns an open, migrated PostgreSQL database and its URL (for opening it a second time,
// with service as the schema).
func Postgres(t *testing.T, service string) (*database.DB, string) {
	t.Helper()
	server := serverURL(t)
	template, err := templateOf(t.Context(), server, service)
	require.NoError(t, err)
	url := create(t, server, template)
	return open(t, url, service), url
}

// SQLite returns an open, migrated SQLite database and its URL.
func SQLite(t *testing.T, service string) (*database.DB, string) {
	t.Helper()
	url := SQLiteURL(t)
	require.NoError(t, database.Migrate(t.Context(), url, migrations.Of(service), database.Options{}))
	return open(t, url, service), url
}

// PostgresURL returns the URL of a new empty database, dropped at the end of the test.
func PostgresURL(t *testing.T) string {
	t.Helper()
	return create(t, serverURL(t), "template1")
}

// SQLiteURL returns the URL of a file that does not exist yet.
func SQLiteURL(t *testing.T) string {
	t.Helper()
	return "sqlite:" + filepath.Join(t.TempDir(), "test.db")
}

func open(t *testing.T, url, service string) *database.DB {
	t.Helper()
	db, err := database.Open(url, database.Options{Schema: service, Application: "databasetest"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

// background outlives the test's own context, which has ended when clean-up runs.
func background(t *testing.T) context.Context { return context.WithoutCancel(t.Context()) }
