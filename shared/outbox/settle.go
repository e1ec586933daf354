package outbox

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/lease"
)

// settle writes down what became of a page, in one transaction that only the
// leader of the current term can commit. When it fails, nothing is lost: the rows
// are published again, and the broker or the consumers know them.
func (l *leader) settle(ctx context.Context, p page, out outcome) error {
	if err := l.trust(out); err != nil {
		return fmt.Errorf("settle: %w", err)
	}
	s, w := l.state, l.witness
	runs := runsOf(p.items, out.results)
	for _, r := range runs {
		s.lastSeq = max(s.lastSeq, r.last) // a duplicate's sequence is an old one
		if r.last >= w.sequence {
			w = witness{sequence: r.last, eventID: r.ids[len(r.ids)-1]}
		}
	}
	err := l.r.db.Tx(ctx, func(ctx context.Context, tx *database.Tx) error {
		if err := lease.Check(ctx, tx, leaseName, l.term); err != nil {
			return err
		}
		var err error
		if p.refill {
			err = settleLost(ctx, tx, p, out, &s)
		} else {
			err = settleWaiting(ctx, tx, p, out)
		}
		return errors.Join(err, insertRuns(ctx, tx, runs), l.write(ctx, tx, s))
	})
	if err != nil {
		return fmt.Errorf("settle: %w", err)
	}
	l.state, l.witness = s, w
	l.r.metrics.published.Add(float64(out.confirmed))
	if p.refill {
		l.r.metrics.refilled.Add(float64(out.confirmed))
	}
	return nil
}

// trust reports receipts that may speak of another past of the stream: it was
// restored between the last comparison and the publish. Then the rows stay, the
// next comparison finds what is missing, and they are published again.
func (l *leader) trust(out outcome) error {
	if l.r.conn.NATS.Stats().Reconnects != l.reconnects {
		return errors.New("the broker was away since the stream was compared")
	}
	for _, r := range out.results {
		if r.sequence > 0 && !r.duplicate && r.sequence <= l.state.lastSeq {
			return fmt.Errorf("the broker gave sequence %d again", r.sequence)
		}
	}
	return nil
}

// settleWaiting removes what is confirmed from the outbox and marks what is dead.
func settleWaiting(ctx context.Context, tx *database.Tx, p page, out outcome) error {
	var confirmed []int64
	for n, r := range out.results {
		switch {
		case r.sequence > 0:
			confirmed = append(confirmed, p.items[n].seq)
		case r.dead != "":
			if _, err := tx.ExecContext(ctx, `UPDATE outbox SET dead_reason = $1 WHERE seq = $2`,
				r.dead, p.items[n].seq); err != nil {
				return fmt.Errorf("mark dead row: %w", err)
			}
		}
	}
	if len(confirmed) == 0 {
		return nil
	}
	condition, arg := tx.Dialect().AnyOf(1, confirmed)
	if _, err := tx.ExecContext(ctx, `DELETE FROM outbox WHERE seq `+condition, arg); err != nil {
		return fmt.Errorf("delete confirmed rows: %w", err)
	}
	return nil
}

// settleLost moves a refill on. An event that is refused now, and what waits
// behind it, goes back into the outbox, where it is seen.
func settleLost(ctx context.Context, tx *database.Tx, p page, out outcome, s *state) error {
	upTo := p.upTo
	if out.pending < len(p.items) {
		upTo = p.items[out.pending].seq - 1
	}
	for n, r := range out.results {
		if r.dead != "" || r.held && p.items[n].seq <= upTo {
			if err := requeue(ctx, tx, p.items[n], r.dead); err != nil {
				return err
			}
		}
	}
	for _, i := range p.held {
		if i.seq <= upTo {
			if err := requeue(ctx, tx, i, ""); err != nil {
				return err
			}
		}
	}
	if p.horizon {
		s.cursor.Int64 = max(s.cursor.Int64, upTo)
		return nil
	}
	if _, err := tx.ExecContext(ctx, `DELETE FROM relay_lost WHERE seq <= $1`, upTo); err != nil {
		return fmt.Errorf("delete refilled rows: %w", err)
	}
	return nil
}

func requeue(ctx context.Context, tx *database.Tx, i item, dead string) error {
	reason := sql.NullString{String: dead, Valid: dead != ""}
	_, err := tx.ExecContext(ctx, `INSERT INTO outbox (seq, event_id, order_id, size, dead_reason)
		VALUES ($1, $2, $3, $4, $5) ON CONFLICT (seq) DO NOTHING`, i.seq, i.eventID, i.orderID, i.size, reason)
	if err != nil {
		return fmt.Errorf("put lost event back: %w", err)
	}
	return nil
}

// run is events with consecutive sequences in the stream, the last of which is last.
type run struct {
	last uint64
	ids  []string
}

func (r run) first() uint64 { return r.last - uint64(len(r.ids)) + 1 }

// runsOf groups the confirmed items. Others publish to the stream too, and duplicates
// have old sequences, so neighbours here need not be neighbours there.
func runsOf(items []item, results []result) []run {
	var runs []run
	for n, r := range results {
		if r.sequence == 0 {
			continue
		}
		if k := len(runs) - 1; k >= 0 && runs[k].last+1 == r.sequence {
			runs[k].last, runs[k].ids = r.sequence, append(runs[k].ids, items[n].eventID)
			continue
		}
		runs = append(runs, run{last: r.sequence, ids: []string{items[n].eventID}})
	}
	return runs
}

// insertRuns logs the runs. A sequence holds one message, so of two runs that end
// at the same one the longer holds the shorter.
func insertRuns(ctx context.Context, tx *database.Tx, runs []run) error {
	if len(runs) == 0 {
		return nil
	}
	var failed error
	values, args := database.Rows(tx.Dialect(), runs, func(r run) []any {
		ids, err := json.Marshal(r.ids)
		failed = errors.Join(failed, err)
		return []any{int64(r.last), string(ids)}
	})
	if failed != nil {
		return fmt.Errorf("encode relay log: %w", failed)
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO relay_log (last_seq, event_ids) `+values+`
		ON CONFLICT (last_seq) DO UPDATE SET event_ids = excluded.event_ids
			WHERE length(excluded.event_ids) > length(relay_log.event_ids)`, args...)
	if err != nil {
		return fmt.Errorf("write relay log: %w", err)
	}
	return nil
}
