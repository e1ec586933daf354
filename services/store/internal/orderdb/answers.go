package orderdb

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pillarbox/pillarbox/shared/database"
)

// Key is an idempotency key of one caller.
type Key struct {
	Caller string
	Name   string
}

// Answer is the first answer to a key.
type Answer struct {
	Key         Key
	Fingerprint []byte // of the request
	OrderID     string
	Status      int
	Body        []byte
	At          time.Time
}

// Claim stores the answers whose keys are free, and reports which they were. A key that
// another transaction is about to take is waited for. The answers must be sorted by key, each
// key once, so that two transactions never wait for each other.
func Claim(ctx context.Context, tx *database.Tx, answers []Answer) (claimed map[Key]bool, err error) {
	if len(answers) == 0 {
		return nil, nil
	}
	const columns = 7
	args := make([]any, 0, len(answers)*columns)
	for _, a := range answers {
		args = append(args, a.Key.Caller, a.Key.Name, a.Fingerprint, a.OrderID, a.Status, a.Body, database.Micros(a.At))
	}
	rows, err := tx.QueryContext(ctx, `INSERT INTO idempotency
		(caller, key, fingerprint, order_id, status, response, created_at)
		VALUES `+database.Values(len(answers), columns)+`
		ON CONFLICT DO NOTHING RETURNING caller, key`, args...)
	if err != nil {
		return nil, fmt.Errorf("claim idempotency keys: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	claimed = make(map[Key]bool, len(answers))
	for rows.Next() {
		var k Key
		if err := rows.Scan(&k.Caller, &k.Name); err != nil {
			return nil, fmt.Errorf("claim idempotency keys: %w", err)
		}
		claimed[k] = true
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("claim idempotency keys: %w", err)
	}
	return claimed, nil
}

// Answers reads the stored answers to the keys.
func Answers(ctx context.Context, q database.Querier, keys []Key) (found map[Key]Answer, err error) {
	if len(keys) == 0 {
		return nil, nil
	}
	args := make([]any, 0, len(keys)*2)
	for _, k := range keys {
		args = append(args, k.Caller, k.Name)
	}
	rows, err := q.QueryContext(ctx, `SELECT caller, key, fingerprint, order_id, status, response, created_at
		FROM idempotency WHERE (caller, key) IN (VALUES `+database.Values(len(keys), 2)+`)`, args...)
	if err != nil {
		return nil, fmt.Errorf("read stored answers: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	found = make(map[Key]Answer, len(keys))
	for rows.Next() {
		var a Answer
		var at int64
		if err := rows.Scan(&a.Key.Caller, &a.Key.Name, &a.Fingerprint, &a.OrderID, &a.Status, &a.Body, &at); err != nil {
			return nil, fmt.Errorf("read stored answers: %w", err)
		}
		a.At = database.Time(at)
		found[a.Key] = a
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read stored answers: %w", err)
	}
	return found, nil
}

// RemoveAnswers removes up to limit answers that are older than age, and reports how many. It may
// run in several replicas at once.
func RemoveAnswers(ctx context.Context, db *database.DB, age time.Duration, limit int) (removed int64, err error) {
	err = db.Tx(ctx, func(ctx context.Context, tx *database.Tx) error {
		result, err := tx.ExecContext(ctx, `DELETE FROM idempotency WHERE (caller, key) IN (
			SELECT caller, key FROM idempotency WHERE created_at < `+tx.Dialect.Now()+` - $1
			ORDER BY created_at LIMIT $2`+tx.Dialect.SkipLocked()+`)`, age.Microseconds(), limit)
		if err != nil {
			return err
		}
		removed, err = result.RowsAffected()
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("remove old answers: %w", err)
	}
	return removed, nil
}
