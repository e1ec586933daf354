package database

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
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
// trip. What they return is dropped; one that fails undoes all. Its errors mean what
// those of Tx mean; since nobody can step in between the last statement and the
// commit, a connection that breaks at any moment leaves the outcome unknown
// (ErrCommitUnknown) unless nothing was sent.
//
// The end of ctx before the batch is sent is an error of Tx's kind; after that it
// does not interrupt the batch.
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
		sent, err := db.send(ctx, statements)
		if err == nil || sent || ctx.Err() != nil || try >= db.maxConns || !lostPooled(err) {
			return err
		}
	}
}

// send is one try of a batch. Unless sent, nothing has happened.
func (db *DB) send(ctx context.Context, statements []Statement) (sent bool, err error) {
	conn, err := db.write.Conn(ctx)
	if err != nil {
		return false, &beginError{err}
	}
	defer func() { err = errors.Join(err, ignoreDone(conn.Close())) }()
	err = conn.Raw(func(raw any) error {
		c := raw.(*stdlib.Conn).Conn()
		// Not ctx: the driver would break the connection when it ends, also in a commit.
		inner, end := context.WithTimeout(context.WithoutCancel(ctx), batchTimeout)
		defer end()
		var b pgx.Batch // without a transaction of its own the server makes it one
		for _, s := range statements {
			b.Queue(s.SQL, s.Args...)
		}
		err := c.SendBatch(inner, &b).Close()
		if err == nil {
			sent = true
			return nil
		}
		err = commitError(err)
		sent = !errors.Is(err, errNotSent)
		if c.IsClosed() {
			return errors.Join(err, driver.ErrBadConn) // out of the pool
		}
		return err
	})
	return sent, err
}

var errNotSent = fmt.Errorf("nothing was sent")
