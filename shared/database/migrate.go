package database

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
)

const (
	// migrateLockTimeout is how long a migration may wait for a table: everybody
	// who comes after it waits too. It is tried again migrateTries times.
	migrateLockTimeout = 5 * time.Second
	migrateTries       = 5
)

// Migrate applies the migrations in files (postgres/ or sqlite/ below its root, goose
// SQL) under a lock, so that many processes may start at once. A database whose
// schema is newer than files is left as it is. On PostgreSQL it creates
// o.Schema when missing. url may name another role than the service's, and lead
// through a pooler in transaction mode. On SQLite it is safe within one process and
// for processes that come one after the other.
//
// Each file is one transaction: a crash leaves the files before it applied, and
// the next start goes on there.
func Migrate(ctx context.Context, url string, files fs.FS, o Options) error {
	o, err := o.withDefaults()
	if err != nil {
		return err
	}
	engine, err := engineOf(url)
	if err != nil {
		return err
	}
	for try := 1; ; try++ {
		if engine == postgres {
			err = migratePostgres(ctx, url, files, o)
		} else {
			err = migrateSQLite(ctx, url, files)
		}
		if err == nil {
			return nil
		}
		if try == migrateTries || Classify(err) != ClassConflict {
			return fmt.Errorf("migrate: %w", err)
		}
		if err := pause(ctx, time.Duration(try)*200*time.Millisecond); err != nil {
			return fmt.Errorf("migrate: %w", err)
		}
	}
}

func migratePostgres(ctx context.Context, url string, files fs.FS, o Options) (err error) {
	cfg, err := postgresConfig(url, o, map[string]string{
		"lock_timeout":      millis(migrateLockTimeout),
		"statement_timeout": "0", // filling a new column may take its time
	})
	if err != nil {
		return err
	}
	pool := stdlib.OpenDB(*cfg.ConnConfig, stdlib.OptionAfterConnect(cfg.begin(basic)))
	defer func() { err = errors.Join(err, pool.Close()) }()

	// Not goose's own session locker: goose makes its version table before it takes
	// that lock, looks for the lock every whole second only, and it needs a session.
	turn, err := pool.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer func() { err = errors.Join(err, ignoreDone(turn.Rollback())) }() // and with it the lock
	if err := lockSchema(ctx, turn, o.Schema); err != nil {
		return err
	}
	if err := prepareSchema(ctx, pool, o); err != nil {
		return err
	}
	p, err := provider(goose.DialectPostgres, pool, files, "postgres")
	if err != nil {
		return err
	}
	_, err = p.Up(ctx)
	return err
}

func provider(dialect goose.Dialect, pool *sql.DB, files fs.FS, folder string) (*goose.Provider, error) {
	sub, err := fs.Sub(files, folder)
	if err != nil {
		return nil, err
	}
	return goose.NewProvider(dialect, pool, sub, goose.WithDisableGlobalRegistry(true))
}

// lockSchema waits for this process's turn to change schema. The advisory lock
// ends with the transaction, however that ends. It is asked for again and again
// rather than waited for: whoever waits inside a statement would block an index
// that is being built concurrently. Between statements a transaction that has written
// nothing blocks none.
func lockSchema(ctx context.Context, turn *sql.Tx, schema string) error {
	if _, err := turn.ExecContext(ctx, "SET LOCAL idle_in_transaction_session_timeout = 0"); err != nil {
		return fmt.Errorf("lock schema: %w", err)
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte("pillarbox migrate " + schema)) // never fails
	for {
		var mine bool
		err := turn.QueryRowContext(ctx, "SELECT pg_try_advisory_xact_lock($1)", int64(h.Sum64())).Scan(&mine)
		if err != nil {
			return fmt.Errorf("lock schema: %w", err)
		}
		if mine {
			return nil
		}
		if err := pause(ctx, 25*time.Millisecond+rand.N(25*time.Millisecond)); err != nil {
			return fmt.Errorf("lock schema: %w", err)
		}
	}
}

// prepareSchema creates the schema when it is missing and opens it to o.GrantTo.
func prepareSchema(ctx context.Context, q *sql.DB, o Options) error {
	if o.Schema == "" {
		return nil
	}
	var exists bool
	err := q.QueryRowContext(ctx,
		"SELECT EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = $1)", o.Schema).Scan(&exists)
	if err != nil {
		return fmt.Errorf("look for schema: %w", err)
	}
	schema := pgx.Identifier{o.Schema}.Sanitize()
	var todo []string
	if !exists { // asked first: IF NOT EXISTS alone needs the right to create schemas even when there is nothing to do
		todo = append(todo, "CREATE SCHEMA IF NOT EXISTS "+schema)
	}
	if o.GrantTo != "" {
		role := pgx.Identifier{o.GrantTo}.Sanitize()
		todo = append(todo,
			"GRANT USAGE ON SCHEMA "+schema+" TO "+role,
			"ALTER DEFAULT PRIVILEGES IN SCHEMA "+schema+" GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO "+role,
			"ALTER DEFAULT PRIVILEGES IN SCHEMA "+schema+" GRANT USAGE, SELECT ON SEQUENCES TO "+role)
	}
	for _, statement := range todo {
		if _, err := q.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("prepare schema: %w", err)
		}
	}
	return nil
}

func migrateSQLite(ctx context.Context, url string, files fs.FS) (err error) {
	path, err := createSQLite(url)
	if err != nil {
		return err
	}
	pool, err := sqlitePool(path, sqliteMigrates, 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pool.Close()) }()
	p, err := provider(goose.DialectSQLite3, pool, files, "sqlite")
	if err != nil {
		return err
	}
	// SQLite has no lock that outlives a transaction, so of two that start at once
	// one finds its work done. Its transaction fails as a whole; it looks again.
	for try := 1; ; try++ {
		if _, err = p.Up(ctx); err == nil || try == migrateTries || ctx.Err() != nil {
			return err
		}
		if pending, look := p.HasPending(ctx); look == nil && !pending {
			return nil
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
