// Package auditlog keeps the audit log: one row for every event of every order,
// with the event's bytes as they came.
//
// An event is recorded once, however often and to however many replicas it is
// delivered: the event id is a unique key. Entries are never changed or deleted
// (the schema's triggers refuse it). Events of one order may be recorded out of
// order; the entry holds the order's version. A crash leaves a group of entries
// whole or not there at all, and those events come again.
package auditlog

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/pillarbox/pillarbox/shared/consumer"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/failpoint"
)

// Record writes an entry for each event that has none yet. It is the effect of
// the audit service.
func Record(ctx context.Context, tx *database.Tx, due []consumer.Event) error {
	if len(due) == 0 {
		return nil
	}
	values, args := database.Rows(tx.Dialect(), inStreamOrder(due), func(e consumer.Event) []any {
		return []any{e.ID, e.Type, e.Subject, e.Version, database.Micros(e.Time), e.Raw}
	})
	_, err := tx.ExecContext(ctx, `INSERT INTO entries (event_id, type, order_id, order_version, occurred_at, event) `+
		values+` ON CONFLICT (event_id) DO NOTHING`, args...)
	if err != nil {
		return fmt.Errorf("insert audit entries: %w", err)
	}
	failpoint.Hit("audit.entries_written")
	return nil
}

// inStreamOrder makes positions follow the stream, and gives two replicas that
// record the same events one order to lock their keys in, so that they do not deadlock.
func inStreamOrder(due []consumer.Event) []consumer.Event {
	return slices.SortedFunc(slices.Values(due), func(a, b consumer.Event) int {
		return cmp.Or(cmp.Compare(a.Sequence, b.Sequence), cmp.Compare(a.ID, b.ID))
	})
}
