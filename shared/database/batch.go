package database

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
)

// batchTimeout bounds a batch on PostgreSQL: the server's statement timeout ends
// each statement before that, and a commit that takes longer has an unknown outcome.
const batchTimeout = 15 * time.Second

// Statement is one of a Batch.
type Statement struct {
	SQL  string
	Args []any
}

// Batch runs the statements as one transaction, on PostgreSQL in a single round
// trip. What they return is dropped, and one that fails undoes them all. Its errors
// mean what those of Tx mean. Since nobody stands between the last statement and
// the commit, a connection that breaks after the sending began leaves the outcome
// unknown (ErrCommitUnknown).
//
// The end of ctx counts until the batch is sent; it does not interrupt it.
func (db *DB) Batch(ctx context.Context, statements []Statement) error {
	if db.dialect.engine == sqlite {
		return db.Tx(ctx, func(ctx context.Context, tx *Tx) error {
			for _, s := range statements {
				if _, err := tx.ExecContext(ctx, s.SQL, s.Args...); err != nil {
					return err
				}
			}
			return nil
		})
	}
	for try := 0; ; try++ {
		err := db.send(ctx, statements)
		if err == nil || try >= db.maxConns || !unsent(err) {
			return err
		}
	}
}

// unsent reports a pooled connection that turned out to be lost before anything was sent.
func unsent(err error) bool {
	var begin *beginError
	return !errors.Is(err, ErrCommitUnknown) && !errors.As(err, &begin) && pgconn.SafeToRetry(err)
}

func (db *DB) send(ctx context.Context, statements []Statement) error {
	conn, err := db.write.Conn(ctx)
	if err != nil {
		return &beginError{err}
	}
	err = conn.Raw(func(raw any) error {
		// Not ctx: the driver would break the connection when it ends, also in the middle of the commit.
		inner, end := context.WithTimeout(context.WithoutCancel(ctx), batchTimeout)
		defer end()
		var b pgx.Batch // the server makes one transaction of what comes in one go
		for _, s := range statements {
			b.Queue(s.SQL, s.Args...)
		}
		err := raw.(*stdlib.Conn).Conn().SendBatch(inner, &b).Close()
		if err != nil && !commitRefused(err) {
			return commitError(err)
		}
		return err
	})
	if closed := conn.Close(); !errors.Is(closed, sql.ErrConnDone) {
		err = errors.Join(err, closed)
	}
	return err
}
