package auditlog

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/pillarbox/pillarbox/shared/database"
)

// maxPageBytes bounds the events of one page, which may be 900 KB each; the first
// entry of a page is always there.
const maxPageBytes = 1 << 20

// Entry is one recorded event.
type Entry struct {
	Position     int64
	EventID      string
	Type         string
	OrderID      string
	OrderVersion int64
	OccurredAt   time.Time // by the store's clock, when the event was made
	RecordedAt   time.Time // by this database's clock
	Event        []byte    // the envelope as it came
}

// Query says which entries to read.
type Query struct {
	Order string // of this order only; empty: of all
	After int64  // positions above this one
	Limit int    // at most so many
}

// Page is a run of entries by position.
type Page struct {
	Entries []Entry
	Next    int64 // the position to go on after; 0: there is nothing more
}

// Log reads the entries.
type Log struct{ db *database.DB }

// New returns the log in db.
func New(db *database.DB) *Log { return &Log{db: db} }

// Page reads what is committed now. Positions are taken before the commit, so an
// entry may appear below one that was read already: a listing that must be whole is
// begun anew, not continued.
func (l *Log) Page(ctx context.Context, q Query) (_ Page, err error) {
	args := []any{q.After, q.Limit + 1, maxPageBytes} // one more tells whether there is more
	ofOrder := ""
	if q.Order != "" {
		ofOrder = " AND order_id = $4"
		args = append(args, q.Order)
	}
	rows, err := l.db.Read().QueryContext(ctx, `
		WITH sized AS (
			SELECT position, length(event) AS size FROM entries
			WHERE position > $1`+ofOrder+` ORDER BY position LIMIT $2
		), page AS (
			SELECT position, SUM(size) OVER (ORDER BY position) - size AS ahead FROM sized
		)
		SELECT e.position, e.event_id, e.type, e.order_id, e.order_version, e.occurred_at, e.recorded_at, e.event,
			(SELECT MAX(position) FROM sized)
		FROM page JOIN entries e ON e.position = page.position
		WHERE page.ahead < $3 ORDER BY e.position`, args...)
	if err != nil {
		return Page{}, fmt.Errorf("read audit entries: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	return readPage(rows, q.Limit)
}

func readPage(rows *sql.Rows, limit int) (Page, error) {
	var page Page
	var last int64
	for rows.Next() {
		var e Entry
		var occurred, recorded int64
		if err := rows.Scan(&e.Position, &e.EventID, &e.Type, &e.OrderID, &e.OrderVersion,
			&occurred, &recorded, &e.Event, &last); err != nil {
			return Page{}, fmt.Errorf("scan audit entry: %w", err)
		}
		e.OccurredAt, e.RecordedAt = database.Time(occurred), database.Time(recorded)
		page.Entries = append(page.Entries, e)
	}
	if err := rows.Err(); err != nil {
		return Page{}, fmt.Errorf("read audit entries: %w", err)
	}
	page.Entries = page.Entries[:min(len(page.Entries), limit)]
	if n := len(page.Entries); n > 0 && page.Entries[n-1].Position < last {
		page.Next = page.Entries[n-1].Position
	}
	return page, nil
}
