package database

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

const (
	// txTimeout bounds a transaction whose caller set no deadline.
	txTimeout = 30 * time.Second
	// The server's statement timeout does not cover COMMIT. One that takes longer
	// has an unknown outcome; a ROLLBACK that does costs the connection only.
	commitTimeout   = 5 * time.Second
	rollbackTimeout = 2 * time.Second
)

// Tx is a write transaction.
type Tx struct {
	*sql.Tx
	dialect Dialect
}

// Dialect is of the database's engine.
func (tx *Tx) Dialect() Dialect { return tx.dialect }

// Tx runs do in a write transaction and commits. An error of do rolls back and
// is returned as it is. If the commit's outcome is unknown the error wraps
// ErrCommitUnknown; any other error means that nothing happened.
//
// The end of ctx rolls back when it comes before the commit; it does not
// interrupt a commit that has begun, since that would make its outcome unknown.
// A caller's deadline is cut to 30 s.
func (db *DB) Tx(ctx context.Context, do func(ctx context.Context, tx *Tx) error) error {
	ctx, cancel := context.WithTimeout(ctx, txTimeout)
	defer cancel()
	// The driver would break the connection when the transaction's own context
	// ends, also in the middle of a commit. So it gets one that follows ctx only
	// up to BEGIN.
	inner, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()

	tx, err := db.begin(ctx, inner, end)
	if err != nil {
		return err
	}
	committing := false
	defer func() {
		if !committing { // do failed or panicked
			timer := time.AfterFunc(rollbackTimeout, end)
			defer timer.Stop()
			// When ROLLBACK itself fails the connection is dropped, which rolls back too.
			_ = tx.Rollback()
		}
	}()
	if err := do(ctx, &Tx{Tx: tx, dialect: db.dialect}); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("before commit: %w", err)
	}
	committing = true
	timer := time.AfterFunc(commitTimeout, end)
	defer timer.Stop()
	if err := tx.Commit(); err != nil {
		return commitError(err)
	}
	return nil
}

// begin opens a transaction on a working connection. BEGIN has no effect, so it
// is repeated when it meets a pooled connection that has just been lost.
func (db *DB) begin(ctx, inner context.Context, end context.CancelFunc) (*sql.Tx, error) {
	stop := context.AfterFunc(ctx, end)
	for try := 0; ; try++ {
		tx, err := db.write.BeginTx(inner, nil)
		if err == nil {
			if !stop() { // ctx has ended meanwhile, and inner with it
				return nil, errors.Join(fmt.Errorf("begin: %w", ctx.Err()), ignoreDone(tx.Rollback()))
			}
			return tx, nil
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("begin: %w", ctx.Err())
		}
		if try >= db.maxConns || !lostPooled(err) {
			stop()
			return nil, &beginError{err}
		}
	}
}

// lostPooled reports a connection that broke after it was made; one that could
// not be made at all is an outage, which repeating at once only makes worse.
func lostPooled(err error) bool {
	var connect *pgconn.ConnectError
	return !errors.As(err, &connect) && connectionLost(err)
}

func ignoreDone(err error) error {
	if errors.Is(err, sql.ErrTxDone) {
		return nil
	}
	return err
}

// beginError marks that not even a transaction could be had: whatever the
// engine says, the database is not available for writing.
type beginError struct{ err error }

func (e *beginError) Error() string { return "begin: " + e.err.Error() }
func (e *beginError) Unwrap() error { return e.err }
