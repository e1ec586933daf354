package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/pillarbox/pillarbox/services/loyalty/internal/points"
	"github.com/pillarbox/pillarbox/shared/database"
)

// ErrNoAccount: no event ever named this account.
var ErrNoAccount = errors.New("no such account")

// Entry is one posting of an account.
type Entry struct {
	Position int64
	EventID  string
	OrderID  string
	Points   int64
	Reason   points.Reason
	At       time.Time // when the event was made
}

// Query says what to read of an account.
type Query struct {
	Account string
	Before  int64 // entries older than this position; 0: from the newest
	Limit   int   // at most so many
}

// Statement is a balance and a run of its entries, the newest first.
type Statement struct {
	Account string
	Points  int64
	Entries []Entry
	Next    int64 // the position to go on before; 0: there is nothing older
}

// Ledger reads accounts.
type Ledger struct{ db *database.DB }

// New returns the ledger in db.
func New(db *database.DB) *Ledger { return &Ledger{db: db} }

// Statement reads an account, or fails with ErrNoAccount. One SELECT is one snapshot:
// a first page holds the posting that made the balance what it is.
func (l *Ledger) Statement(ctx context.Context, q Query) (_ Statement, err error) {
	if q.Before == 0 {
		q.Before = math.MaxInt64
	}
	rows, err := l.db.Read().QueryContext(ctx, `
		SELECT a.points, e.position, e.event_id, e.order_id, e.points, e.reason, e.at
		FROM accounts a LEFT JOIN (
			SELECT customer, position, event_id, order_id, points, reason, at FROM ledger
			WHERE customer = $1 AND position < $2 ORDER BY position DESC LIMIT $3
		) e ON e.customer = a.customer
		WHERE a.customer = $1 ORDER BY e.position DESC`, q.Account, q.Before, q.Limit+1) // one more tells whether there is more
	if err != nil {
		return Statement{}, fmt.Errorf("read account: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	return readStatement(rows, q)
}

func readStatement(rows *sql.Rows, q Query) (Statement, error) {
	s, known := Statement{Account: q.Account}, false
	for rows.Next() {
		var position, delta, at sql.NullInt64
		var eventID, orderID, reason sql.NullString
		if err := rows.Scan(&s.Points, &position, &eventID, &orderID, &delta, &reason, &at); err != nil {
			return Statement{}, fmt.Errorf("scan account: %w", err)
		}
		known = true
		if position.Valid { // not so when every entry is newer than asked for
			s.Entries = append(s.Entries, Entry{Position: position.Int64, EventID: eventID.String, OrderID: orderID.String,
				Points: delta.Int64, Reason: points.Reason(reason.String), At: database.Time(at.Int64)})
		}
	}
	if err := rows.Err(); err != nil {
		return Statement{}, fmt.Errorf("read account: %w", err)
	}
	if !known {
		return Statement{}, ErrNoAccount
	}
	if len(s.Entries) > q.Limit {
		s.Entries = s.Entries[:q.Limit]
		s.Next = s.Entries[q.Limit-1].Position
	}
	return s, nil
}
