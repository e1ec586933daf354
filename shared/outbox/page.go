package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

const (
	// A page is what one atomic batch may hold.
	maxRows  = 1000
	maxBytes = 4 << 20
)

// item is one event to publish.
type item struct {
	seq       int64 // events.seq
	eventID   string
	orderID   string
	publishID string
	size      int64
	payload   []byte
}

// page is the next items of a source, in the order of events.seq, which is the
// order of the versions of each order.
type page struct {
	items []item
	// refill: the items are what the stream lost, from the list or from the horizon,
	// and the page covers that up to this events.seq, skipped events included.
	refill  bool
	horizon bool
	upTo    int64
	held    []item // lost events whose order has a dead row: they wait behind it in the outbox
}

func (p page) empty() bool { return len(p.items) == 0 && !p.refill }

// page reads what is to be published next. What the stream lost goes first: new
// events of the same orders come after it.
func (l *leader) page(ctx context.Context) (page, error) {
	var p page
	most, err := l.budget(ctx)
	if err != nil {
		return page{}, err
	}
	if l.state.refilling() {
		p, err = l.lostPage(ctx, most)
	} else {
		p.items, err = l.waiting(ctx, most, nil)
	}
	if err == nil {
		err = l.readPayloads(ctx, p.items)
	}
	if err != nil {
		return page{}, fmt.Errorf("read events to publish: %w", err)
	}
	return p, nil
}

// waiting reads the head of the outbox as it is at this moment. No position is
// remembered: rows that committed late have lower numbers than rows already gone. besides are rows to pass over.
func (l *leader) waiting(ctx context.Context, most int64, besides []int64) (items []item, err error) {
	rows, err := l.r.db.Read().QueryContext(ctx, `SELECT o.seq, o.event_id, o.order_id, o.size FROM outbox o
		WHERE o.dead_reason IS NULL AND NOT EXISTS (SELECT 1 FROM outbox d
			WHERE d.dead_reason IS NOT NULL AND d.order_id = o.order_id AND d.seq < o.seq)
		ORDER BY o.seq LIMIT $1`, maxRows+len(besides))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	slices.Sort(besides)
	var total int64
	for rows.Next() {
		var i item
		if err := rows.Scan(&i.seq, &i.eventID, &i.orderID, &i.size); err != nil {
			return nil, err
		}
		if _, gone := slices.BinarySearch(besides, i.seq); gone {
			continue
		}
		if total += i.size + stepOverhead; len(items) == maxRows || total > most && len(items) > 0 {
			break
		}
		i.publishID = i.eventID
		items = append(items, i)
	}
	return items, rows.Err()
}

// lostPage reads the next events of a refill: first those known one by one, then the horizon.
func (l *leader) lostPage(ctx context.Context, most int64) (page, error) {
	seqs, err := l.seqs(ctx, `SELECT seq FROM relay_lost ORDER BY seq LIMIT $1`, maxRows)
	horizon := err == nil && len(seqs) == 0 && l.state.cursor.Valid
	if horizon {
		seqs, err = l.seqs(ctx, `SELECT seq FROM events WHERE seq > $2 ORDER BY seq LIMIT $1`, maxRows, l.state.cursor.Int64)
	}
	if err != nil || len(seqs) == 0 {
		return page{}, err
	}
	p, err := l.describe(ctx, seqs, most)
	p.horizon = horizon
	return p, err
}

// describe makes a page of the events, as many as fit. What is in the outbox is
// left out: it is published from there.
func (l *leader) describe(ctx context.Context, seqs []int64, most int64) (p page, err error) {
	p = page{refill: true, upTo: seqs[len(seqs)-1]}
	condition, arg := l.r.db.Dialect().AnyOf(1, seqs)
	rows, err := l.r.db.Read().QueryContext(ctx, `SELECT e.seq, e.id, e.order_id, length(e.payload),
			(SELECT count(*) FROM outbox o WHERE o.seq = e.seq),
			(SELECT count(*) FROM outbox d WHERE d.dead_reason IS NOT NULL AND d.order_id = e.order_id AND d.seq < e.seq)
		FROM events e WHERE e.seq `+condition+` ORDER BY e.seq`, arg)
	if err != nil {
		return page{}, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	var total int64
	for rows.Next() {
		var i item
		var queued, dead int
		if err := rows.Scan(&i.seq, &i.eventID, &i.orderID, &i.size, &queued, &dead); err != nil {
			return page{}, err
		}
		if total += i.size + stepOverhead; total > most && total > i.size+stepOverhead {
			p.upTo = i.seq - 1
			break
		}
		switch i.publishID = fmt.Sprintf(refillPrefix+"%d:%s", l.state.refillCount, i.eventID); {
		case queued > 0:
		case dead > 0:
			p.held = append(p.held, i)
		default:
			p.items = append(p.items, i)
		}
	}
	return p, rows.Err()
}

// readPayloads fills in the payloads. They are read after the page is cut to its
// size: a thousand of the largest events would be a gigabyte.
func (l *leader) readPayloads(ctx context.Context, items []item) (err error) {
	if len(items) == 0 {
		return nil
	}
	at := make(map[int64]int, len(items))
	for n, i := range items {
		at[i.seq] = n
	}
	condition, arg := l.r.db.Dialect().AnyOf(1, seqsOf(items))
	rows, err := l.r.db.Read().QueryContext(ctx, `SELECT seq, payload FROM events WHERE seq `+condition, arg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var seq int64
		var payload []byte
		if err := rows.Scan(&seq, &payload); err != nil {
			return err
		}
		items[at[seq]].payload = payload
		delete(at, seq)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	for seq := range at {
		return fmt.Errorf("event %d of the outbox is not among the events", seq)
	}
	return nil
}

func seqsOf(items []item) []int64 {
	seqs := make([]int64, len(items))
	for n, i := range items {
		seqs[n] = i.seq
	}
	return seqs
}

func (l *leader) seqs(ctx context.Context, query string, args ...any) (seqs []int64, err error) {
	rows, err := l.r.db.Read().QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var seq int64
		if err := rows.Scan(&seq); err != nil {
			return nil, err
		}
		seqs = append(seqs, seq)
	}
	return seqs, rows.Err()
}
