package orderdb

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/retention"
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
	s := InsertAnswers(tx.Dialect(), answers)
	rows, err := tx.QueryContext(ctx, s.SQL+` ON CONFLICT DO NOTHING RETURNING caller, key`, s.Args...)
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

// InsertAnswers returns the statement that stores answers, at least one, whose keys are free.
func InsertAnswers(d database.Dialect, answers []Answer) database.Statement {
	rows, args := database.Rows(d, answers, func(a Answer) []any {
		return []any{a.Key.Caller, a.Key.Name, a.Fingerprint, a.OrderID, a.Status, a.Body, database.Micros(a.At)}
	})
	return database.Statement{SQL: `INSERT INTO idempotency
		(caller, key, fingerprint, order_id, status, response, created_at) ` + rows, Args: args}
}

// Answers reads the stored answers to the keys.
func Answers(ctx context.Context, q database.Querier, keys []Key) (found map[Key]Answer, err error) {
	if len(keys) == 0 {
		return nil, nil
	}
	list, args := database.Rows(q.Dialect(), keys, func(k Key) []any { return []any{k.Caller, k.Name} })
	rows, err := q.QueryContext(ctx, `SELECT caller, key, fingerprint, order_id, status, response, created_at
		FROM idempotency WHERE (caller, key) IN (`+list+`)`, args...)
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

// RemoveAnswers removes answers to idempotency keys that are older than their retention.
func RemoveAnswers() retention.Bite {
	return retention.Rows("idempotency", "caller, key", "created_at", "")
}
