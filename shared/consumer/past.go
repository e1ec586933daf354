package consumer

import (
	"context"
	"fmt"
	"time"

	"github.com/pillarbox/pillarbox/shared/database"
)

// From is where a consumer begins: FromStart, FromNow, an RFC 3339 time (events of that time included), or empty:
// with what the stream still keeps.
type From string

const (
	FromStart From = "start" // all events that ever were
	FromNow   From = "now"   // those from the first start on
)

// Valid reports whether f is one of these.
func (f From) Valid() bool { _, err := f.time(); return err == nil }

// time is the one that f names; zero for what is no time.
func (f From) time() (at time.Time, err error) {
	switch f {
	case "", FromStart, FromNow:
		return at, nil
	}
	if at, err = time.Parse(time.RFC3339, string(f)); err != nil {
		return time.Time{}, fmt.Errorf("%q is not start, now or an RFC 3339 time such as 2026-01-31T00:00:00Z", f)
	}
	return at.UTC().Truncate(time.Microsecond), nil
}

// Past is where a consumer asks for events of the past, and learns that no more of them can come
// (outbox.Registrar).
type Past interface {
	// Ask wants all events since from; it is called before the subscription begins.
	Ask(from time.Time)
	// Complete reports whether all of them were published and acknowledged.
	Complete() bool
}

// beginning is where this consumer begins, as its first start ever decided.
type beginning struct {
	started time.Time // that first start, by the database's clock
	from    string    // Config.From then; empty: with what the stream keeps
	since   time.Time // events of before take no effect; with from
}

// before reports whether e is from before the beginning. The beginning itself is not. It goes by the time in the
// event, which is the store's database clock, and which never falls from one version of an order to the next.
func (b beginning) before(e Event) bool { return b.from != "" && e.Time.Before(b.since) }

// placedBefore is the time of which orders that were placed before it may begin with another version than the first.
func (b beginning) placedBefore() time.Time {
	if b.from != "" {
		return b.since
	}
	return b.started
}

// begin writes, at the first start ever, when that was and where the consumer begins, and reads it.
func (c *Consumer) begin(ctx context.Context, tx *database.Tx) (b beginning, err error) {
	at, err := c.From.time()
	if err != nil {
		return b, err
	}
	text, since := string(c.From), database.Micros(time.Unix(0, 0))
	if !at.IsZero() {
		text, since = at.Format(time.RFC3339Nano), database.Micros(at)
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO consumer_state (name, started_at, from_setting, from_time)
		SELECT CAST($1 AS TEXT), n.now, CAST($2 AS TEXT), CASE WHEN CAST($2 AS TEXT) = 'now' THEN n.now ELSE CAST($3 AS BIGINT) END
		FROM (SELECT `+tx.Dialect().Now()+` AS now) AS n WHERE true
		ON CONFLICT (name) DO NOTHING`, c.Name, text, since)
	if err != nil {
		return b, fmt.Errorf("insert consumer state: %w", err)
	}
	var started int64
	err = tx.QueryRowContext(ctx, `SELECT started_at, from_setting, from_time FROM consumer_state WHERE name = $1`, c.Name).
		Scan(&started, &b.from, &since)
	if err != nil {
		return b, fmt.Errorf("read consumer state: %w", err)
	}
	b.started, b.since = database.Time(started), database.Time(since)
	if c.From != "" && text != b.from {
		c.log.WarnContext(ctx, "from has no effect: where this consumer begins was decided at its first start",
			"from", text, "decided", b.from)
	}
	return b, nil
}

// catchingUp: events of the past may still come, also lower versions than those that wait. Then a missing version is
// no gap, no order begins with a later one, and waiting events are not counted against the limits: what they wait
// for comes behind them, so a limit would hold both up for ever. Their number is bounded by what the stream
// keeps and what happens meanwhile.
func (c *Consumer) catchingUp() bool {
	return c.beginning.from != "" && c.past != nil && !c.past.Complete()
}

// markEarly tells the events from before the beginning. They advance lanes and go on along their routes like any
// other, but the effect does not see them.
func (c *Consumer) markEarly(items []*item) {
	for _, i := range items {
		i.early = c.beginning.before(i.Event)
	}
}

// seen are those that the effect sees.
func seen(items []*item) []*item {
	var out []*item
	for n, i := range items {
		switch {
		case i.early && out == nil:
			out = append(make([]*item, 0, len(items)), items[:n]...)
		case !i.early && out != nil:
			out = append(out, i)
		}
	}
	if out == nil {
		return items
	}
	return out
}
