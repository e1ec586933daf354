// Package database opens PostgreSQL or SQLite behind one set of types, so that
// the services' SQL is written once. It is the only package that imports a
// driver.
//
// SQL text is the common subset with $1 parameters and unqualified table
// names: every PostgreSQL session has its search_path set to the service's one
// schema, a SQLite file holds one service. Times are BIGINT microseconds since
// 1970 UTC in both engines; DB.Now and Dialect.Now give the database's clock.
package database

import (
	"context"
	"database/sql"
	"io/fs"
	"time"
)

// Options configure Open. The zero value works.
type Options struct {
	// Schema is the PostgreSQL schema of the service (search_path); SQLite ignores it.
	Schema string
	// MaxConns bounds the pool (SQLite: the read pool). Default 8.
	MaxConns int
	// StatementTimeout bounds one statement on PostgreSQL. Default 10 s.
	StatementTimeout time.Duration
}

// DB is an open database: one writer and a pool of readers for SQLite, one
// pool for PostgreSQL.
type DB struct {
	dialect     Dialect
	write, read *sql.DB
}

// Querier is what both a transaction and the read pool offer.
type Querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Tx is a write transaction.
type Tx struct {
	*sql.Tx
	Dialect Dialect
}

// Dialect names the engine and holds the few differences in SQL text.
type Dialect struct{ engine engine }

type engine int

const (
	postgres engine = iota
	sqlite
)

// Postgres reports whether the engine is PostgreSQL.
func (d Dialect) Postgres() bool { return d.engine == postgres }

// Now is an SQL expression for the database's clock in microseconds since 1970.
func (d Dialect) Now() string { panic("skeleton") }

// ForUpdate is the row lock clause to append to a SELECT (" FOR UPDATE", or "" where the
// transaction already excludes every other writer).
func (d Dialect) ForUpdate() string { panic("skeleton") }

// ForShare is like ForUpdate with a shared lock.
func (d Dialect) ForShare() string { panic("skeleton") }

// SkipLocked is ForUpdate that passes over rows locked by others.
func (d Dialect) SkipLocked() string { panic("skeleton") }

// Values returns the placeholder rows "($1,$2),($3,$4)" for a multi-row INSERT.
func Values(rows, columns int) string { panic("skeleton") }

// In returns the placeholder list "($k,$k+1,…)" of n parameters starting at $first.
func In(first, n int) string { panic("skeleton") }

// Open connects to url: postgres://… or sqlite:PATH. It does not wait for an
// unreachable server: the first use reports it.
func Open(url string, o Options) (*DB, error) { panic("skeleton") }

// Migrate applies the migrations in files (postgres/ or sqlite/ below its root, goose
// SQL) under a lock, so that many processes may start at once. A database whose
// schema is newer than files is left as it is. On PostgreSQL it creates
// o.Schema when missing. url may name another role than the service's.
func Migrate(ctx context.Context, url string, files fs.FS, o Options) error { panic("skeleton") }

// Tx runs do in a write transaction and commits. An error of do rolls back and
// is returned as it is. If the commit's outcome is unknown the error wraps
// ErrCommitUnknown.
func (db *DB) Tx(ctx context.Context, do func(ctx context.Context, tx *Tx) error) error {
	panic("skeleton")
}

// Read is for queries outside a write transaction.
func (db *DB) Read() Querier { return db.read }

// Dialect returns the engine's dialect.
func (db *DB) Dialect() Dialect { return db.dialect }

// Ping reports whether the database answers and takes writes.
func (db *DB) Ping(ctx context.Context) error { panic("skeleton") }

// Now returns the database's clock.
func (db *DB) Now(ctx context.Context) (time.Time, error) { panic("skeleton") }

// Close closes all connections.
func (db *DB) Close() error { panic("skeleton") }

// Micros is t as the databases keep it; Time is its inverse, in UTC.
func Micros(t time.Time) int64 { return t.UnixMicro() }

// Time is the inverse of Micros.
func Time(micros int64) time.Time { return time.UnixMicro(micros).UTC() }
