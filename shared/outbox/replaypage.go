package outbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/events"
	"github.com/pillarbox/pillarbox/shared/lease"
	"github.com/pillarbox/pillarbox/shared/logs"
)

// replayed is what became of a page: the first of its items are published.
type replayed struct {
	done  int
	first uint64 // sequence in the stream of the first that is no duplicate; 0: all are
	last  run    // the message with the highest sequence
}

// replayPage publishes the next page of a replay and writes down how far it is. The page that is written down and
// the sequences that the stream gave are one transaction, as for live events.
func (l *leader) replayPage(ctx, finish context.Context, j job) error {
	items, upTo, err := l.replayItems(ctx, j)
	if err != nil {
		return fmt.Errorf("read events to replay: %w", err)
	}
	l.r.step("replay.read")
	out, failed := l.publishReplay(finish, events.ReplayTopic(j.name), j, items)
	l.r.step("replay.published")
	if out.done < len(items) {
		upTo = items[out.done].seq - 1
	}
	if err := l.settleReplay(finish, j, out, upTo); err != nil {
		return errors.Join(err, failed)
	}
	l.r.metrics.replayed.Add(float64(out.done))
	l.progress = l.progress || out.done > 0
	l.r.step("replay.settled")
	return failed
}

// replayItems reads the next events of a replay, as many as fit, and up to which events.seq they are all that is
// wanted. What is in the outbox is left out: it comes live.
func (l *leader) replayItems(ctx context.Context, j job) (items []item, upTo int64, err error) {
	limit := replayRows
	if l.replays.careful[j.name] {
		limit = broker.FewMessages
	}
	items, upTo, err = l.describeReplay(ctx, j, limit)
	if err != nil {
		return nil, 0, err
	}
	return items, upTo, l.readPayloads(ctx, items)
}

func (l *leader) describeReplay(ctx context.Context, j job, limit int) (items []item, upTo int64, err error) {
	rows, err := l.r.db.Read().QueryContext(ctx, `SELECT e.seq, e.id, e.order_id, length(e.payload),
			(SELECT count(*) FROM outbox o WHERE o.seq = e.seq)
		FROM events e WHERE e.seq > $1 AND e.seq <= $2 ORDER BY e.seq LIMIT $3`, j.doneUpTo, j.upTo, limit)
	if err != nil {
		return nil, 0, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	most := min(replayBytes, l.r.c.MaxBytes/8) // a page must fit into the half that is free
	var total int64
	found := 0
	for rows.Next() {
		var i item
		var queued int
		if err := rows.Scan(&i.seq, &i.eventID, &i.orderID, &i.size, &queued); err != nil {
			return nil, 0, err
		}
		if total += i.size; total > most && len(items) > 0 {
			return items, i.seq - 1, nil
		}
		found++
		upTo = i.seq
		if queued > 0 {
			continue
		}
		i.publishID = fmt.Sprintf(replayPrefix+"%s-%d:%s", j.name, j.number, i.eventID)
		items = append(items, i)
	}
	if found < limit {
		upTo = j.upTo
	}
	return items, upTo, rows.Err()
}

// publishReplay publishes the items in order, as one batch when nothing speaks against it.
func (l *leader) publishReplay(ctx context.Context, topic string, j job, items []item) (out replayed, err error) {
	if len(items) > broker.FewMessages && !l.replays.careful[j.name] {
		batch := make([]*message.Message, len(items))
		for n, i := range items {
			batch[n] = i.message()
		}
		last, err := l.r.pub.PublishAtomic(ctx, topic, batch)
		if err == nil {
			end := items[len(items)-1]
			return replayed{len(items), last - uint64(len(items)-1), run{last: last, ids: []string{end.publishID}}}, nil
		}
		// A duplicate or a refused one among them: the singles tell which. Else it is not certain that nothing was
		// stored.
		l.replays.careful[j.name] = true
		if !errors.Is(err, broker.ErrDuplicate) && !errors.Is(err, broker.ErrRefused) {
			return out, fmt.Errorf("replay: %w", err)
		}
		items = items[:broker.FewMessages]
	}
	for _, i := range items {
		receipt, err := l.r.pub.PublishOne(ctx, topic, i.message())
		switch {
		case err == nil:
			out.add(receipt, i)
			l.replays.careful[j.name] = receipt.Duplicate
		case errors.Is(err, broker.ErrRefused):
			// The subscriber will miss it and say so; the others must not wait for ever.
			l.log.ErrorContext(ctx, "event refused in a replay and left out", logs.Consumer, j.name,
				logs.EventID, i.eventID, logs.Key, i.orderID, logs.Error, err)
			out.done++
		default:
			l.replays.careful[j.name] = true
			return out, fmt.Errorf("replay: %w", err)
		}
	}
	return out, nil
}

func (out *replayed) add(receipt broker.Receipt, i item) {
	out.done++
	if !receipt.Duplicate && out.first == 0 {
		out.first = receipt.Sequence
	}
	if receipt.Sequence > out.last.last {
		out.last = run{last: receipt.Sequence, ids: []string{i.publishID}}
	}
}

// settleReplay writes down how far a replay is. Its last message stands in the log of what the stream got, under
// its publish id: so a lost tail shows itself, while what a refill publishes to everyone leaves replays out.
func (l *leader) settleReplay(ctx context.Context, j job, out replayed, upTo int64) error {
	if l.r.conn.NATS.Stats().Reconnects != l.reconnects {
		return errors.New("settle replay: the broker was away since the stream was compared")
	}
	if out.first > 0 && out.first <= l.state.lastSeq {
		return fmt.Errorf("settle replay: the broker gave sequence %d again", out.first)
	}
	s, w := l.state, l.witness
	var runs []run
	if out.last.last > 0 {
		s.lastSeq, runs = max(s.lastSeq, out.last.last), []run{out.last}
		if out.last.last >= w.sequence {
			w = witness{sequence: out.last.last, eventID: out.last.ids[0]}
		}
	}
	state := replayRunning
	if upTo >= j.upTo {
		state = replayPublished
	}
	err := l.r.db.Tx(ctx, func(ctx context.Context, tx *database.Tx) error {
		if err := lease.Check(ctx, tx, leaseName, l.term); err != nil {
			return err
		}
		// No row: the subscriber was removed meanwhile.
		_, err := tx.ExecContext(ctx, `UPDATE replays SET done_up_to = $1, last_seq = $2, state = $3
			WHERE name = $4 AND number = $5`, upTo, max(j.lastSeq, out.last.last), state, j.name, j.number)
		if err != nil {
			return fmt.Errorf("write replay: %w", err)
		}
		return errors.Join(insertRuns(ctx, tx, runs), l.write(ctx, tx, s))
	})
	if err != nil {
		return fmt.Errorf("settle replay: %w", err)
	}
	l.state, l.witness = s, w
	return nil
}
