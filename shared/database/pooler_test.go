package database_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/migrations"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
)

// Without a real pooler in between: what is sent and what is refused is the same.
func TestBehindAPoolerTheRoleMustHaveTheSettings(t *testing.T) {
	t.Parallel()
	direct, url := databasetest.Postgres(t, service)
	pooled := url + "&pooler=transaction"
	// The test's own database stands for the role.
	set := func(what string) {
		var name string
		require.NoError(t, direct.Read().QueryRowContext(t.Context(), "SELECT quote_ident(current_database())").Scan(&name))
		_, err := direct.Read().ExecContext(t.Context(), "ALTER DATABASE "+name+" SET "+what)
		require.NoError(t, err)
	}
	ping := func() error {
		return open(t, pooled, database.Options{Schema: service}).Ping(t.Context())
	}
	migrate := func() error {
		return database.Migrate(t.Context(), pooled, migrations.Of(service), database.Options{Schema: service})
	}
	set("synchronous_commit = off")
	set("default_transaction_isolation = 'serializable'")
	err := ping()
	for _, setting := range []string{
		"search_path", "default_transaction_isolation", "synchronous_commit",
		"lock_timeout", "idle_in_transaction_session_timeout", "statement_timeout",
	} {
		require.ErrorContains(t, err, setting+" = ")
	}
	require.ErrorContains(t, err, "ALTER ROLE")
	require.ErrorContains(t, migrate(), "search_path = ")
	set("search_path = " + service)
	set("synchronous_commit = on")
	set("default_transaction_isolation = 'read committed'")
	require.NoError(t, migrate(), "it needs no time limits")
	set("lock_timeout = '800ms'")
	set("idle_in_transaction_session_timeout = '1min'")
	set("statement_timeout = '10s'")
	err = ping()
	require.ErrorContains(t, err, "needs settings of its own (ALTER ROLE … SET …): idle_in_transaction_session_timeout = '3s'")
	set("idle_in_transaction_session_timeout = '3s'")
	require.NoError(t, ping())

	db := open(t, pooled, database.Options{Schema: service, Application: "pooled"})
	require.NoError(t, db.Tx(t.Context(), func(ctx context.Context, tx *database.Tx) error {
		var one int
		return tx.QueryRowContext(ctx, "SELECT $1::int FROM leases RIGHT JOIN (VALUES (1)) AS v ON true", 1).Scan(&one)
	}))
	var prepared int
	require.NoError(t, open(t, pooled, database.Options{MaxConns: 1}).Read().
		QueryRowContext(t.Context(), "SELECT count(*) FROM pg_prepared_statements WHERE name <> $1", "").Scan(&prepared))
	require.Zero(t, prepared)
	_, err = database.Open(url+"&pooler=session", database.Options{})
	require.ErrorContains(t, err, "pooler must be transaction")
}
