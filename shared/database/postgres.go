package database

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"maps"
	"net"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
)

const (
	// Both are below the broker's ack deadline (5 s): a frozen replica must not
	// hold rows that its successor needs.
	idleInTransactionTimeout = 3 * time.Second
	lockTimeout              = time.Second

	isolation = "read committed"

	connectTimeout  = 5 * time.Second
	statementCache  = 128
	connMaxLifetime = 30 * time.Minute // so that a pool moves over to a new primary or address
)

// errReadOnly is Ping's answer from a standby or a server set read-only.
var errReadOnly = errors.New("database takes no writes")

func openPostgres(url string, o Options) (*DB, error) {
	cfg, err := postgresConfig(url, o, map[string]string{
		"idle_in_transaction_session_timeout": millis(idleInTransactionTimeout),
		"lock_timeout":                        millis(lockTimeout),
		"statement_timeout":                   millis(o.StatementTimeout),
	})
	if err != nil {
		return nil, err
	}
	pool := stdlib.OpenDB(*cfg.ConnConfig,
		stdlib.OptionAfterConnect(cfg.begin(bounded)),
		stdlib.OptionResetSession(dropDead))
	pool.SetMaxOpenConns(o.MaxConns)
	pool.SetMaxIdleConns(o.MaxConns)
	pool.SetConnMaxLifetime(connMaxLifetime)
	return newDB(postgres, pool, pool, o.MaxConns), nil
}

// connection is how sessions are made.
type connection struct {
	*pgx.ConnConfig
	pooled bool // through a pooler in transaction mode: see pooler.go
	schema string
}

// postgresConfig is what every session of ours has in common, and the given settings.
func postgresConfig(url string, o Options, settings map[string]string) (*connection, error) {
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, safeURLError(err)
	}
	cfg.RuntimeParams["application_name"] = o.Application
	pooled, err := behindPooler(cfg)
	if err != nil {
		return nil, err
	}
	if !pooled {
		maps.Copy(cfg.RuntimeParams, settings)
		if o.Schema != "" {
			cfg.RuntimeParams["search_path"] = pgx.Identifier{o.Schema}.Sanitize()
		}
		// The services' SQL is written for this level; a role's default must not change it.
		cfg.RuntimeParams["default_transaction_isolation"] = isolation
	}
	if cfg.ConnectTimeout == 0 {
		cfg.ConnectTimeout = connectTimeout
	}
	// Multi-row statements come in many lengths, and the server keeps each prepared
	// one in memory for each connection.
	cfg.StatementCacheCapacity = statementCache
	// A peer that vanished without a word is noticed after some ten seconds, also
	// by a caller that waits without a deadline.
	dialer := &net.Dialer{KeepAliveConfig: net.KeepAliveConfig{
		Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 3,
	}}
	cfg.DialFunc = dialer.DialContext
	return &connection{cfg, pooled, o.Schema}, nil
}

// begin is what a new connection starts with.
func (c *connection) begin(n needs) func(context.Context, *pgx.Conn) error {
	if c.pooled {
		return func(ctx context.Context, conn *pgx.Conn) error { return checkRole(ctx, conn, c.schema, n) }
	}
	return commitDurably
}

// safeURLError keeps the URL and pieces of it out of the message: a parser's
// complaint about a badly escaped password quotes it.
func safeURLError(err error) error {
	var parse *pgconn.ParseConfigError
	if errors.As(err, &parse) {
		return errors.New("postgres url is not valid; it is not shown since it may hold a password")
	}
	return fmt.Errorf("postgres url: %w", err)
}

// commitDurably makes a commit mean "on disk" where a role or database was set
// up otherwise. It leaves the stricter levels of a replicated cluster alone.
func commitDurably(ctx context.Context, c *pgx.Conn) error {
	_, err := c.Exec(ctx, `SELECT set_config('synchronous_commit', 'on', false)
		WHERE current_setting('synchronous_commit') = 'off'`)
	if err != nil {
		return fmt.Errorf("set synchronous_commit: %w", err)
	}
	return nil
}

// dropDead takes a connection out of the pool before it is used again when the
// server has closed it meanwhile, so that a restart of the server does not fail
// one piece of work per pooled connection.
func dropDead(_ context.Context, c *pgx.Conn) error {
	if quiet(c.PgConn().Conn()) {
		return nil
	}
	return driver.ErrBadConn
}

func (db *DB) pingPostgres(ctx context.Context) error {
	var readOnly bool
	err := db.read.QueryRowContext(ctx,
		`SELECT pg_is_in_recovery() OR current_setting('transaction_read_only') = 'on'`).Scan(&readOnly)
	if err != nil {
		return fmt.Errorf("ping database: %w", err)
	}
	if readOnly {
		return errReadOnly
	}
	return nil
}

func millis(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
