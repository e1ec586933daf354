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
	"errors"
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
	for len(rows) > 0 {
		n, size := 0, 0
		for n < len(rows) && n < appendRows && (n == 0 || size+len(rows[n].Payload) <= appendBytes) {
			size += len(rows[n].Payload)
			n++
		}
		if err := appendChunk(ctx, tx, rows[:n]); err != nil {
			return err
		}
		rows = rows[n:]
	}
	return nil
}

func appendChunk(ctx context.Context, tx *database.Tx, rows []Row) error {
	args := make([]any, 0, 5*len(rows))
	for _, r := range rows {
		args = append(args, r.Event.ID, r.Event.Subject, r.Event.Version, r.Event.Type, r.Payload)
	}
	seqs, err := insertEvents(ctx, tx, len(rows), args)
	if err != nil {
		return fmt.Errorf("append events: %w", err)
	}
	args = args[:0]
	for _, r := range rows {
		seq, ok := seqs[r.Event.ID]
		if !ok {
			return fmt.Errorf("append events: event %q got no sequence number", r.Event.ID)
		}
		args = append(args, seq, r.Event.ID, r.Event.Subject, len(r.Payload))
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO outbox (seq, event_id, order_id, size) VALUES `+
		database.Values(len(rows), 4), args...); err != nil {
		return fmt.Errorf("append to outbox: %w", err)
	}
	return nil
}

// insertEvents returns the sequence number of each event id. Both engines number
// the rows of VALUES in their order.
func insertEvents(ctx context.Context, tx *database.Tx, n int, args []any) (seqs map[string]int64, err error) {
	rows, err := tx.QueryContext(ctx, `INSERT INTO events (id, order_id, version, type, payload) VALUES `+
		database.Values(n, 5)+` RETURNING id, seq`, args...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	seqs = make(map[string]int64, n)
	for rows.Next() {
		var id string
		var seq int64
		if err := rows.Scan(&id, &seq); err != nil {
			return nil, err
		}
		seqs[id] = seq
	}
	return seqs, rows.Err()
}
