// Package databasetest gives each test a migrated database of its own, on
// PostgreSQL and on SQLite. Only tests import it.
package databasetest

import (
	"testing"

	"github.com/pillarbox/pillarbox/shared/database"
)

// EnvURL names the environment variable with the URL of a PostgreSQL server whose user may create databases.
const EnvURL = "PILLARBOX_TEST_POSTGRES_URL"

// Each runs test as subtests "sqlite" and "postgres", in parallel, with the URL of an empty database each and
// an open DB with service's migrations applied. Without a PostgreSQL server that subtest is
// skipped, or fails when CI is set.
func Each(t *testing.T, service string, test func(t *testing.T, db *database.DB)) { panic("skeleton") }

// Postgres returns an open, migrated PostgreSQL database and its URL (for opening it a second time).
func Postgres(t *testing.T, service string) (*database.DB, string) { panic("skeleton") }

// SQLite returns an open, migrated SQLite database and its URL.
func SQLite(t *testing.T, service string) (*database.DB, string) { panic("skeleton") }

// PostgresURL returns the URL of a new empty database, dropped at the end of the test.
func PostgresURL(t *testing.T) string { panic("skeleton") }
