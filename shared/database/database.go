// Package database opens PostgreSQL or SQLite behind one set of types, so that
// the services' SQL is written once. It is the only package that imports a
// driver.
//
// SQL text is the common subset with $1 parameters and unqualified table
// names: every PostgreSQL session has its search_path set to the service's one
// schema, a SQLite file holds one service. Times are BIGINT microseconds since
// 1970 UTC in both engines; DB.Now and Dialect.Now give the database's clock.
//
// It promises that a transaction whose Tx returned nil survives a power loss of
// the database's machine, that an error of Tx means "did not happen" unless it is
// ErrCommitUnknown, and that a lost connection is replaced by itself. It does
// not repeat a failed transaction: the caller knows what it would mean.
//
// A crash of the process leaves at most a transaction that the server rolls
// back: at once when the connection breaks, after three seconds when the process
// is only frozen. A SQLite file recovers from its log when it is opened again.
package database

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
)

const (
	defaultMaxConns         = 8
	defaultStatementTimeout = 10 * time.Second
)

// Options configure Open and Migrate. The zero value works.
type Options struct {
	// Schema is the PostgreSQL schema of the service (search_path); SQLite ignores it.
	Schema string
	// MaxConns bounds the pool (SQLite: the read pool). Default 8.
	MaxConns int
	// StatementTimeout bounds one statement on PostgreSQL. Default 10 s.
	StatementTimeout time.Duration
	// Application is the name that PostgreSQL's pg_stat_activity shows. Default "pillarbox".
	Application string
	// GrantTo names the PostgreSQL role that may use what Migrate creates, for when
	// migrations run as another role than the service. Open ignores it.
	GrantTo string
}

func (o Options) withDefaults() (Options, error) {
	if o.MaxConns < 0 || o.StatementTimeout < 0 {
		return o, errors.New("database options: connections and statement timeout must not be negative")
	}
	if o.MaxConns == 0 {
		o.MaxConns = defaultMaxConns
	}
	if o.StatementTimeout == 0 {
		o.StatementTimeout = defaultStatementTimeout
	}
	if o.Application == "" {
		o.Application = "pillarbox"
	}
	return o, nil
}

// DB is an open database: one writer and a pool of readers for SQLite, one
// pool for PostgreSQL.
type DB struct {
	dialect     Dialect
	write, read *sql.DB
	maxConns    int
	warming     chan struct{} // capacity 1: held while Warm collects connections
}

// Querier is what both a transaction and the read pool offer.
type Querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	Dialect() Dialect
}

// reader is the read pool as a Querier.
type reader struct {
	*sql.DB
	dialect Dialect
}

func (r reader) Dialect() Dialect { return r.dialect }

// Open connects to url: postgres://… or sqlite:PATH. It does not wait for an
// unreachable server: the first use reports it. A SQLite file is created when
// missing, and refused when it cannot be made safe against power loss.
func Open(url string, o Options) (*DB, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	switch engine, err := engineOf(url); {
	case err != nil:
		return nil, err
	case engine == postgres:
		return openPostgres(url, o)
	default:
		return openSQLite(url, o)
	}
}

func newDB(e engine, write, read *sql.DB, maxConns int) *DB {
	return &DB{dialect: Dialect{e}, write: write, read: read, maxConns: maxConns, warming: make(chan struct{}, 1)}
}

func engineOf(url string) (engine, error) {
	scheme, _, _ := strings.Cut(url, ":")
	switch scheme {
	case "postgres", "postgresql":
		return postgres, nil
	case "sqlite":
		return sqlite, nil
	}
	// The URL itself stays out of the message: it may hold a password.
	return 0, errors.New("database url must be postgres://… or sqlite:PATH")
}

// Read is for queries outside a write transaction.
func (db *DB) Read() Querier { return reader{db.read, db.dialect} }

// Dialect returns the engine's dialect.
func (db *DB) Dialect() Dialect { return db.dialect }

// Ping reports whether the database answers and takes writes.
func (db *DB) Ping(ctx context.Context) error {
	if db.dialect.engine == sqlite {
		return db.pingSQLite(ctx)
	}
	return db.pingPostgres(ctx)
}

// Warm opens n connections (at most the pool's size) and leaves them in the
// pool, so that the first work does not wait for them: a new PostgreSQL
// connection costs 24 ms and a cold pool stalls for a second. Callers take
// turns: two that collect connections at once could each hold what the other
// waits for.
func (db *DB) Warm(ctx context.Context, n int) error {
	select {
	case db.warming <- struct{}{}:
		defer func() { <-db.warming }()
	case <-ctx.Done():
		return fmt.Errorf("warm connections: %w", ctx.Err())
	}
	n = min(n, db.maxConns)
	conns := make([]*sql.Conn, n)
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			if conns[i], errs[i] = db.read.Conn(ctx); errs[i] == nil {
				errs[i] = conns[i].PingContext(ctx)
			}
		})
	}
	wg.Wait() // all are open at the same time before the first goes back
	for _, c := range conns {
		if c != nil {
			errs = append(errs, c.Close())
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("warm connections: %w", err)
	}
	return nil
}

// Now returns the database's clock.
func (db *DB) Now(ctx context.Context) (time.Time, error) {
	var micros int64
	if err := db.read.QueryRowContext(ctx, "SELECT "+db.dialect.Now()).Scan(&micros); err != nil {
		return time.Time{}, fmt.Errorf("read database clock: %w", err)
	}
	return Time(micros), nil
}

// Close closes all connections. Transactions under way fail.
func (db *DB) Close() error {
	if db.read == db.write {
		return db.read.Close()
	}
	// The writer goes last: SQLite's last connection folds the log into the file.
	return errors.Join(db.read.Close(), db.write.Close())
}

// Micros is t as the databases keep it.
func Micros(t time.Time) int64 { return t.UnixMicro() }

// Time is the inverse of Micros, in UTC.
func Time(micros int64) time.Time { return time.UnixMicro(micros).UTC() }
