package database_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/pillarbox/pillarbox/migrations"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest/postgres"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	service  = "loyalty" // any service's tables do
	patience = time.Minute
)

// insert adds a row that count finds.
func insert(ctx context.Context, q database.Querier, id string) error {
	_, err := q.ExecContext(ctx, `INSERT INTO lanes (version, order_id) VALUES ($2, $1)`, id, 7)
	return err
}

func put(ctx context.Context, db *database.DB, id string) error {
	return db.Tx(ctx, func(ctx context.Context, tx *database.Tx) error { return insert(ctx, tx, id) })
}

func count(t *testing.T, db *database.DB, id string) (n int) {
	t.Helper()
	err := db.Read().QueryRowContext(t.Context(), `SELECT COUNT(*) FROM lanes WHERE order_id = $1 AND version = 7`, id).Scan(&n)
	require.NoError(t, err)
	return n
}

// server starts a PostgreSQL server for one test and returns it with a migrated database.
func server(t *testing.T) (*postgres.Server, *database.DB) {
	t.Helper()
	s, err := postgres.Start(t.Context(), postgres.Config{})
	if errors.Is(err, postgres.ErrNotFound) {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	o := database.Options{Schema: service, MaxConns: 4}
	require.NoError(t, database.Migrate(t.Context(), s.URL(), migrations.Of(service), o))
	return s, open(t, s.URL(), o)
}

func open(t *testing.T, url string, o database.Options) *database.DB {
	t.Helper()
	db, err := database.Open(url, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}
