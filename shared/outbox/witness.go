package outbox

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/pillarbox/pillarbox/shared/broker"
)

// The last sequence alone does not show a lost tail: whoever else publishes to the
// stream soon makes up for it. So the relay also looks whether the stream still
// has, at the last sequence that the log knows, the message that the log knows.

// witness is one message that the broker confirmed. A zero sequence is none.
type witness struct {
	sequence uint64
	eventID  string
}

// logged returns the logged message with the highest sequence up to upTo.
func (l *leader) logged(ctx context.Context, upTo uint64) (witness, error) {
	const columns = `SELECT last_seq, event_ids FROM relay_log WHERE `
	// A run that ends further up may hold it.
	for _, where := range []string{`last_seq >= $1 ORDER BY last_seq LIMIT 1`, `last_seq < $1 ORDER BY last_seq DESC LIMIT 1`} {
		r, err := scanRun(l.r.db.Read().QueryRowContext(ctx, columns+where, upTo))
		if errors.Is(err, sql.ErrNoRows) {
			continue
		}
		if err != nil {
			return witness{}, fmt.Errorf("read relay log: %w", err)
		}
		if last := min(r.last, upTo); last >= r.first() {
			return witness{sequence: last, eventID: r.ids[last-r.first()]}, nil
		}
	}
	return witness{}, nil
}

func scanRun(row interface{ Scan(...any) error }) (run, error) {
	var r run
	var ids string
	if err := row.Scan(&r.last, &ids); err != nil {
		return run{}, err
	}
	if err := json.Unmarshal([]byte(ids), &r.ids); err != nil {
		return run{}, fmt.Errorf("decode ids: %w", err)
	}
	if len(r.ids) == 0 {
		return run{}, errors.New("a run without ids")
	}
	return r, nil
}

// agrees reports whether the stream has the witness. What was purged or deleted is
// taken for there: a lost place is either beyond the end or taken by another message.
func (l *leader) agrees(ctx context.Context, stream broker.StreamState, w witness) (bool, error) {
	if w.sequence == 0 || w.sequence < stream.FirstSeq {
		return true, nil
	}
	if w.sequence > stream.LastSeq {
		return false, nil
	}
	handle, err := l.r.conn.JS.Stream(ctx, l.r.c.Stream)
	if err != nil {
		return false, fmt.Errorf("look up stream: %w", err)
	}
	m, err := handle.GetMsg(ctx, w.sequence)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("look up message %d: %w", w.sequence, err)
	}
	id := m.Header.Get(jetstream.MsgIDHeader)
	return id == w.eventID || strings.HasPrefix(id, refillPrefix) && strings.HasSuffix(id, ":"+w.eventID), nil
}

// agreement returns the highest sequence up to which the log and the stream agree. The
// stream has the beginning of what the log knows and then something else, so
// halving finds the place.
func (l *leader) agreement(ctx context.Context, stream broker.StreamState) (uint64, error) {
	low := max(stream.FirstSeq, 1) - 1
	high := max(l.state.lastSeq, low) + 1
	for high-low > 1 {
		middle := low + (high-low)/2
		w, err := l.logged(ctx, middle)
		if err != nil {
			return 0, err
		}
		if w.sequence <= low { // nothing is logged in between
			low = middle
			continue
		}
		switch same, err := l.agrees(ctx, stream, w); {
		case err != nil:
			return 0, err
		case same:
			low = middle
		default:
			high = w.sequence
		}
	}
	return low, nil
}
