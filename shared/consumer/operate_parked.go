package consumer

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/pillarbox/pillarbox/shared/database"
)

// ParkedEvent is a row of parked as an operator sees it.
type ParkedEvent struct {
	Service   string     `json:"service"`
	Event     string     `json:"event_id"`
	Order     string     `json:"order_id"`
	Version   int64      `json:"version"`
	State     string     `json:"state"` // waiting, parked or dead
	Attempts  int        `json:"attempts"`
	NextAt    *time.Time `json:"next_attempt_at"` // of a parked one
	LastError string     `json:"last_error,omitempty"`
	Since     time.Time  `json:"since"`
	Bytes     int64      `json:"bytes"`
	Lane      *int64     `json:"lane,omitempty"` // the version its order has reached; none for a consumer without lanes
	// Missing are the versions that never came, when the order waits for these.
	Missing *Range `json:"missing,omitempty"`
	*Content
}

// Range is from one version to another, both included.
type Range struct {
	From int64 `json:"from"`
	To   int64 `json:"to"`
}

func (r Range) String() string {
	if r.From == r.To {
		return fmt.Sprintf("version %d", r.From)
	}
	return fmt.Sprintf("versions %d to %d", r.From, r.To)
}

// Place is where a row stands in the list.
type Place struct {
	Order   string
	Version int64
	Event   string
}

// ParkedFilter says which rows are meant; its zero value means all.
type ParkedFilter struct {
	Order, State string
	// After is the last row of the page before.
	After Place
}

// Parked lists rows by order and version.
func (o *Operator) Parked(ctx context.Context, f ParkedFilter, limit int) ([]ParkedEvent, error) {
	var w conditions
	if f.Order != "" {
		w.add(`p.order_id = ?`, f.Order)
	}
	if f.State != "" {
		if !slices.Contains([]string{stateWaiting, stateParked, stateDead}, f.State) {
			return nil, fmt.Errorf("%w: state must be waiting, parked or dead", ErrInvalid)
		}
		w.add(`p.state = ?`, f.State)
	}
	if f.After.Order != "" {
		w.add(`(p.order_id, p.version, p.event_id) > (?, ?, ?)`, f.After.Order, f.After.Version, f.After.Event)
	}
	return o.parked(ctx, w, page(limit), "'', '{}', '[]', p.event_id", false)
}

// ParkedOrder returns all that is parked of one order, with the events themselves.
func (o *Operator) ParkedOrder(ctx context.Context, order string) ([]ParkedEvent, error) {
	var w conditions
	w.add(`p.order_id = ?`, order)
	const most = 20 // with their bodies
	out, err := o.parked(ctx, w, most, "p.subject, p.headers, p.history, p.event", true)
	if err == nil && len(out) == 0 {
		err = fmt.Errorf("%w: nothing of order %q is parked at %s", ErrNotFound, order, o.name)
	}
	return out, err
}

func (o *Operator) parked(ctx context.Context, w conditions, limit int, extra string, whole bool) ([]ParkedEvent, error) {
	lanes, join := "-1, 0", ""
	if o.ordered {
		join = ` LEFT JOIN lanes l ON l.order_id = p.order_id`
		lanes = `coalesce(l.version, 0), coalesce((SELECT min(q.version) FROM parked q
			WHERE q.order_id = p.order_id AND q.version > coalesce(l.version, 0)), 0)`
	}
	where, args := w.limit("p.order_id, p.version, p.event_id", limit)
	rows, err := o.db.Read().QueryContext(ctx, `
		SELECT p.event_id, p.order_id, p.version, p.state, p.attempts, p.next_attempt_at, p.last_error, p.created_at,
			length(p.event), `+lanes+`, `+extra+` FROM parked p`+join+where, args...)
	if err != nil {
		return nil, fmt.Errorf("list parked: %w", err)
	}
	out := []ParkedEvent{}
	err = each(rows, func() error {
		p := ParkedEvent{Service: o.name}
		var next, since, lane, first int64
		var subject, headers, history string
		var body []byte
		if err := rows.Scan(&p.Event, &p.Order, &p.Version, &p.State, &p.Attempts, &next, &p.LastError, &since,
			&p.Bytes, &lane, &first, &subject, &headers, &history, &body); err != nil {
			return err
		}
		p.Since = database.Time(since)
		if p.State == stateParked {
			p.NextAt = timeOf(next)
		}
		if lane >= 0 {
			p.Lane = &lane
			if first > lane+1 {
				p.Missing = &Range{lane + 1, first - 1}
			}
		}
		if whole {
			p.Content = contentOf(subject, headers, history, body)
		}
		out = append(out, p)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list parked: %w", err)
	}
	return out, nil
}

// RetryFilter says which parked events are tried at once: one, those of an order, or all.
type RetryFilter struct {
	Order string `json:"order,omitempty"`
	Event string `json:"event,omitempty"`
	All   bool   `json:"all,omitempty"`
}

// maxRetry bounds what one call changes.
const maxRetry = 10_000

// Retry makes parked events due now and returns how many; at most 10,000 in one call. The next sweep of any
// replica tries them, and each counts as an attempt.
func (o *Operator) Retry(ctx context.Context, a Actor, f RetryFilter) (n int64, err error) {
	var w conditions
	now := o.db.Dialect().Now()
	w.add(`state = 'parked' AND next_attempt_at > ` + now + ` AND claimed_until <= ` + now)
	target := "all"
	switch {
	case f.Event != "" && f.Order == "" && !f.All:
		w.add(`event_id = ?`, f.Event)
		target = f.Event
	case f.Order != "" && f.Event == "" && !f.All:
		w.add(`order_id = ?`, f.Order)
		target = f.Order
	case !f.All || f.Order != "" || f.Event != "":
		return 0, fmt.Errorf("%w: name an order or an event, or all", ErrInvalid)
	}
	err = o.act(ctx, a, "retry", target, func(ctx context.Context, tx *database.Tx) (string, error) {
		where, args := w.limit("event_id", maxRetry)
		done, err := tx.ExecContext(ctx, `UPDATE parked SET next_attempt_at = `+now+
			` WHERE event_id IN (SELECT event_id FROM parked`+where+`)`, args...)
		if err != nil {
			return "", fmt.Errorf("retry: %w", err)
		}
		if n, err = done.RowsAffected(); err != nil {
			return "", fmt.Errorf("retry: %w", err)
		}
		return fmt.Sprintf("%d due now", n), nil
	})
	return n, err
}

// Skip lets an order go on without versions: the one that stands next and fails or is dead (its bytes stay as
// a dead letter), or those that never came. r must be what holds the order now, as the person saw it. The
// effects of these versions never happen here, also when they should come later.
func (o *Operator) Skip(ctx context.Context, a Actor, order string, r Range) error {
	switch {
	case !o.ordered:
		return fmt.Errorf("%w: %s keeps no order, nothing waits there", ErrRefused, o.name)
	case order == "" || r.From < 1 || r.To < r.From:
		return fmt.Errorf("%w: an order and its versions must be named", ErrInvalid)
	case a.Reason == "":
		return fmt.Errorf("%w: a reason must be given", ErrInvalid)
	}
	target, err := json.Marshal(struct {
		Order string `json:"order"`
		Range
	}{order, r})
	if err != nil {
		return fmt.Errorf("skip: %w", err)
	}
	return o.act(ctx, a, "skip", string(target), func(ctx context.Context, tx *database.Tx) (string, error) {
		lanes, err := lockLanes(ctx, tx, []string{order}, nil)
		if err != nil {
			return "", err
		}
		if lane := lanes[order]; r.From != lane+1 {
			return "", fmt.Errorf("%w: order %s has reached version %d, so its next one is %d", ErrRefused, order, lane, lane+1)
		}
		if err := o.holder(ctx, tx, a, order, r); err != nil {
			return "", err
		}
		return r.String() + " skipped", advance(ctx, tx, map[string]int64{order: r.To})
	})
}

// holder removes the row that holds the order, or checks that the versions are missing.
func (o *Operator) holder(ctx context.Context, tx *database.Tx, a Actor, order string, r Range) error {
	stored, err := readRows(ctx, tx, []string{order}, int(min(r.To-r.From, maxBatch)+2))
	if err != nil {
		return err
	}
	here := stored[order]
	if len(here) == 0 || here[0].version > r.To {
		var behind int
		err := tx.QueryRowContext(ctx, `SELECT count(*) FROM parked WHERE order_id = $1 AND version > $2`, order, r.To).Scan(&behind)
		if err != nil {
			return fmt.Errorf("count parked: %w", err)
		}
		if behind == 0 {
			return fmt.Errorf("%w: nothing of order %s waits behind version %d", ErrRefused, order, r.To)
		}
		return nil
	}
	at := here[0]
	held, _ := position{rows: stored}.at(order, at.version)
	switch {
	case at.version != r.From || r.To != r.From:
		return fmt.Errorf("%w: version %d of order %s is here", ErrRefused, at.version, order)
	case held.state == stateWaiting:
		return fmt.Errorf("%w: version %d of order %s is here and about to take effect", ErrRefused, at.version, order)
	}
	return buryForGood(ctx, tx, held, "skipped by "+a.Who+": "+a.Reason)
}

// buryForGood turns the row of an event into a skipped letter. A letter that stands keeps its own reason.
func buryForGood(ctx context.Context, tx *database.Tx, r row, why string) error {
	_, err := tx.ExecContext(ctx, `
		INSERT INTO dead_letters (id, event_id, order_id, version, subject, stream_sequence, headers, body, reason, attempts, history, skipped)
		SELECT $1, event_id, order_id, version, subject, stream_sequence, headers, event, $2, attempts, history, 1
		FROM parked WHERE event_id = $3
		ON CONFLICT (id) DO UPDATE SET skipped = 1`,
		letterID(r.eventID), clean(why, maxText), r.eventID)
	if err != nil {
		return fmt.Errorf("insert dead letter: %w", err)
	}
	return deleteRows(ctx, tx, []string{r.eventID})
}
