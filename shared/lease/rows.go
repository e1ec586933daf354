package lease

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/pillarbox/pillarbox/shared/database"
)

// releaseTimeout bounds giving the lease back, so that a stop does not hang on a
// database that is away.
const releaseTimeout = 2 * time.Second

// acquire takes the lease when it is free and returns its new term, or 0 when
// somebody else holds it. first tells a process that has just started from one
// that lost an election.
func (l *Lease) acquire(ctx context.Context, first bool) (term int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, l.c.TTL)
	defer cancel()
	// A SQLite file serves one process, by the lock on its folder. So a new holder
	// knows that the one in the row is dead and need not wait for it to expire.
	var atOnce int64
	if first && !l.db.Dialect().Postgres() {
		atOnce = 1
	}
	// Followers look without a lock; they would hold up the leader's own row locks.
	free, err := l.free(ctx, atOnce)
	if err != nil || !free {
		return 0, err
	}
	now := l.db.Dialect().Now()
	err = l.db.Tx(ctx, func(ctx context.Context, tx *database.Tx) error {
		// Naming the key column among the changed ones makes PostgreSQL take the
		// stronger row lock here: it waits for every Check, while a renewal does not.
		// A row that is still ours has an unknown outcome behind it: nobody leads.
		err := tx.QueryRowContext(ctx, `
			INSERT INTO leases (name, holder, term, expires_at) VALUES ($1, $2, 1, `+now+` + $3)
			ON CONFLICT (name) DO UPDATE SET
				name = excluded.name, holder = excluded.holder,
				term = leases.term + 1, expires_at = excluded.expires_at
			WHERE leases.expires_at <= `+now+` OR leases.holder = excluded.holder OR $4 = 1
			RETURNING term`,
			l.c.Name, l.c.Holder, l.c.TTL.Microseconds(), atOnce).Scan(&term)
		if errors.Is(err, sql.ErrNoRows) {
			return nil // another follower was faster
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("acquire lease: %w", err)
	}
	return term, nil
}

func (l *Lease) free(ctx context.Context, atOnce int64) (bool, error) {
	var free int64
	err := l.db.Read().QueryRowContext(ctx, `
		SELECT CASE WHEN expires_at <= `+l.db.Dialect().Now()+` OR holder = $2 OR $3 = 1 THEN 1 ELSE 0 END
		FROM leases WHERE name = $1`, l.c.Name, l.c.Holder, atOnce).Scan(&free)
	if errors.Is(err, sql.ErrNoRows) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("look at lease: %w", err)
	}
	return free == 1, nil
}

// renew fails with ErrLost when the row is another's or was given back.
func (l *Lease) renew(ctx context.Context, term int64) error {
	return l.update(ctx, "renew lease", `
		UPDATE leases SET expires_at = `+l.db.Dialect().Now()+` + $4
		WHERE name = $1 AND holder = $2 AND term = $3 AND expires_at > 0`,
		l.c.Name, l.c.Holder, term, l.c.TTL.Microseconds())
}

// release lets the next leader begin at once. The term stays, so that it goes on
// rising. It is no error when somebody else has the lease by now.
func (l *Lease) release(ctx context.Context, term int64) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	err := l.update(ctx, "give lease back", `
		UPDATE leases SET expires_at = 0 WHERE name = $1 AND holder = $2 AND term = $3`,
		l.c.Name, l.c.Holder, term)
	if errors.Is(err, ErrLost) {
		return nil
	}
	return err
}

func (l *Lease) update(ctx context.Context, doing, statement string, args ...any) error {
	err := l.db.Tx(ctx, func(ctx context.Context, tx *database.Tx) error {
		result, err := tx.ExecContext(ctx, statement, args...)
		if err != nil {
			return err
		}
		rows, err := result.RowsAffected()
		if err == nil && rows == 0 {
			err = ErrLost
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return nil
}

// Check fails with ErrLost unless term is the current one of name; within tx it
// holds the row so that no other leader can begin before the commit. It does not
// hold up renewals.
func Check(ctx context.Context, tx *database.Tx, name string, term int64) error {
	if termUnchecked {
		return nil
	}
	var current int64
	err := tx.QueryRowContext(ctx,
		`SELECT term FROM leases WHERE name = $1 AND term = $2`+tx.Dialect().ForKeyShare(), name, term).Scan(&current)
	if errors.Is(err, sql.ErrNoRows) {
		return ErrLost
	}
	if err != nil {
		return fmt.Errorf("check lease: %w", err)
	}
	return nil
}
