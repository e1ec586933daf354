// Package outbox keeps a transaction's events in the same database until the
// broker has confirmed them, and publishes them in order: Append and the Relay.
//
// It promises that an event whose transaction committed reaches the stream at
// least once, the events of one order in the order of their versions, however
// often processes, the database or the broker die in between; and that events
// which a broker confirmed and lost again (wiped, restored from an older copy)
// are published again by themselves, as far back as the horizon.
//
// It does not promise that an event is in the stream only once: consumers
// deduplicate by event id. A leader of the past that was frozen may repeat a
// publish. Events of different orders have no order among each other.
//
// A crash leaves rows in the outbox that may already be in the stream: the next
// leader publishes them again under the same publish id, which the stream
// recognizes for two minutes and consumers for ever. A crash in a refill leaves
// refill_from set, and the next leader goes on with what is not yet confirmed.
package outbox

import (
	"context"
	"fmt"

	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/events"
)

const (
	// One statement's rows and bytes: few round trips, and no statement that
	// takes the memory of a whole group of large events twice.
	appendRows  = 200
	appendBytes = 4 << 20
)

// Row is an event to append: its envelope and its encoded bytes.
type Row struct {
	Event   events.Event
	Payload []byte
}

// Append writes the rows to events and outbox in the caller's transaction, in the given order. The caller holds
// the locks of the orders concerned, so that sequence numbers rise with an order's versions.
func Append(ctx context.Context, tx *database.Tx, rows []Row) error {
	for _, s := range Statements(tx.Dialect(), rows) {
		if _, err := tx.ExecContext(ctx, s.SQL, s.Args...); err != nil {
			return fmt.Errorf("append events: %w", err)
		}
	}
	return nil
}

// Statements are what Append does, for a transaction that is sent as one batch.
func Statements(d database.Dialect, rows []Row) (all []database.Statement) {
	for len(rows) > 0 {
		n, size := 0, 0
		for n < len(rows) && n < appendRows && (n == 0 || size+len(rows[n].Payload) <= appendBytes) {
			size += len(rows[n].Payload)
			n++
		}
		all = append(all, statements(d, rows[:n])...)
		rows = rows[n:]
	}
	return all
}

// statements of a chunk: PostgreSQL does both tables in one.
func statements(d database.Dialect, rows []Row) []database.Statement {
	values, args := database.Rows(d, rows, func(r Row) []any {
		return []any{r.Event.ID, r.Event.Subject, r.Event.Version, r.Event.Type, r.Payload}
	})
	const (
		event  = `INSERT INTO events (id, order_id, version, type, payload) `
		outbox = `INSERT INTO outbox (seq, event_id, order_id, size) SELECT seq, id, order_id, octet_length(payload) FROM `
	)
	if d.Postgres() {
		return []database.Statement{{SQL: `WITH appended AS (` + event + values + ` RETURNING seq, id, order_id, payload) ` +
			outbox + `appended`, Args: args}}
	}
	// One statement's rows have numbers one after another, and nobody else writes meanwhile.
	return []database.Statement{
		{SQL: event + values, Args: args},
		{SQL: outbox + `events WHERE seq > (SELECT last_insert_rowid()) - $1`, Args: []any{len(rows)}},
	}
}
