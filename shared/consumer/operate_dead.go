package consumer

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pillarbox/pillarbox/shared/database"
)

// DeadLetter is a dead letter as an operator sees it.
type DeadLetter struct {
	Service  string    `json:"service"`
	ID       string    `json:"id"`
	Event    string    `json:"event_id,omitempty"` // as the message says; empty when it does not
	Order    string    `json:"order_id,omitempty"`
	Version  int64     `json:"version,omitempty"`
	Sequence uint64    `json:"stream_sequence,omitempty"`
	Reason   string    `json:"reason"` // the chain of errors of the last attempt
	Attempts int       `json:"attempts"`
	At       time.Time `json:"at"`
	Bytes    int64     `json:"bytes"`
	// Holds: later versions of its order wait for it. Skipped: its order went on without it.
	Holds   bool `json:"holds"`
	Skipped bool `json:"skipped"`
	*Content
}

// LetterFilter says which dead letters are meant; its zero value means all.
type LetterFilter struct {
	IDs    []string  `json:"ids,omitempty"`
	Order  string    `json:"order,omitempty"`
	Since  time.Time `json:"since,omitzero"`
	Reason string    `json:"reason,omitempty"` // a part of it, in any case of letters
}

// LetterPlace is where a letter stands in the list.
type LetterPlace struct {
	At time.Time
	ID string
}

func (f LetterFilter) where() (w conditions, err error) {
	if len(f.IDs) > MaxPage {
		return w, fmt.Errorf("%w: at most %d letters can be named at once", ErrInvalid, MaxPage)
	}
	if len(f.IDs) > 0 {
		values := make([]any, len(f.IDs))
		for n, id := range f.IDs {
			values[n] = id
		}
		w.add(`d.id IN (?`+strings.Repeat(", ?", len(values)-1)+`)`, values...)
	}
	if f.Order != "" {
		w.add(`d.order_id = ?`, f.Order)
	}
	if !f.Since.IsZero() {
		w.add(`d.created_at >= ?`, database.Micros(f.Since))
	}
	if f.Reason != "" {
		w.add(`lower(d.reason) LIKE lower(?) ESCAPE '!'`, "%"+strings.NewReplacer("!", "!!", "%", "!%", "_", "!_").Replace(f.Reason)+"%")
	}
	return w, nil
}

// Letters lists dead letters, the oldest first.
func (o *Operator) Letters(ctx context.Context, f LetterFilter, after LetterPlace, limit int) ([]DeadLetter, error) {
	w, err := f.where()
	if err != nil {
		return nil, err
	}
	if after.ID != "" {
		w.add(`(d.created_at, d.id) > (?, ?)`, database.Micros(after.At), after.ID)
	}
	return o.letters(ctx, w, "d.created_at, d.id", page(limit), false)
}

// Letter returns one dead letter with all that is known of it.
func (o *Operator) Letter(ctx context.Context, id string) (DeadLetter, error) {
	var w conditions
	w.add(`d.id = ?`, id)
	out, err := o.letters(ctx, w, "d.id", 1, true)
	if err != nil {
		return DeadLetter{}, err
	}
	if len(out) == 0 {
		return DeadLetter{}, o.noLetter(id)
	}
	return out[0], nil
}

func (o *Operator) noLetter(id string) error {
	return fmt.Errorf("%w: %s has no dead letter %q", ErrNotFound, o.name, id)
}

func (o *Operator) letters(ctx context.Context, w conditions, order string, limit int, whole bool) ([]DeadLetter, error) {
	extra := `'', '{}', '[]', d.id`
	if whole {
		extra = `d.subject, d.headers, d.history, d.body`
	}
	where, args := w.limit(order, limit)
	rows, err := o.db.Read().QueryContext(ctx, `
		SELECT d.id, coalesce(d.event_id, ''), coalesce(d.order_id, ''), coalesce(d.version, 0), d.stream_sequence, d.reason,
			d.attempts, d.created_at, length(d.body), d.skipped,
			CASE WHEN EXISTS (SELECT 1 FROM parked p WHERE p.event_id = d.event_id AND p.state = 'dead') THEN 1 ELSE 0 END, `+extra+`
		FROM dead_letters d`+where, args...)
	if err != nil {
		return nil, fmt.Errorf("list dead letters: %w", err)
	}
	out := []DeadLetter{}
	err = each(rows, func() error {
		l := DeadLetter{Service: o.name}
		var at, skipped, holds int64
		var subject, headers, history string
		var body []byte
		if err := rows.Scan(&l.ID, &l.Event, &l.Order, &l.Version, &l.Sequence, &l.Reason, &l.Attempts, &at, &l.Bytes,
			&skipped, &holds, &subject, &headers, &history, &body); err != nil {
			return err
		}
		l.At, l.Skipped, l.Holds = database.Time(at), skipped == 1, holds == 1
		if whole {
			l.Content = contentOf(subject, headers, history, body)
		}
		out = append(out, l)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list dead letters: %w", err)
	}
	return out, nil
}

// Drop removes a dead letter with its bytes for good. An order that it holds goes on without the event.
func (o *Operator) Drop(ctx context.Context, a Actor, id string) error {
	if a.Reason == "" {
		return fmt.Errorf("%w: a reason must be given", ErrInvalid)
	}
	return o.act(ctx, a, "drop", id, func(ctx context.Context, tx *database.Tx) (string, error) {
		var event, order string
		err := tx.QueryRowContext(ctx, `SELECT coalesce(event_id, ''), coalesce(order_id, '') FROM dead_letters WHERE id = $1`, id).
			Scan(&event, &order)
		if errors.Is(err, sql.ErrNoRows) {
			return "", o.noLetter(id)
		}
		if err != nil {
			return "", fmt.Errorf("read dead letter: %w", err)
		}
		result := "dropped"
		if id == letterID(event) {
			went, err := o.letGo(ctx, tx, event, order)
			if err != nil {
				return "", err
			}
			if went {
				result = "dropped, and its order goes on"
			}
		}
		done, err := tx.ExecContext(ctx, `DELETE FROM dead_letters WHERE id = $1`, id)
		if err != nil {
			return "", fmt.Errorf("delete dead letter: %w", err)
		}
		if n, err := done.RowsAffected(); err != nil || n == 0 {
			return "", errors.Join(o.noLetter(id), err)
		}
		return result, nil
	})
}

// letGo lets the order of a dead event go on. Locks are taken in the order in which failures take them.
func (o *Operator) letGo(ctx context.Context, tx *database.Tx, event, order string) (bool, error) {
	lane := int64(0)
	if o.ordered {
		lanes, err := lockLanes(ctx, tx, []string{order}, nil)
		if err != nil {
			return false, err
		}
		lane = lanes[order]
	}
	var state string
	var version int64
	err := tx.QueryRowContext(ctx, `SELECT state, version FROM parked WHERE event_id = $1`+tx.Dialect().ForUpdate(), event).Scan(&state, &version)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("read parked: %w", err)
	case state != stateDead:
		return false, fmt.Errorf("%w: its event is being tried again", ErrRefused)
	case o.ordered && version > lane+1:
		return false, fmt.Errorf("%w: order %s waits for %s: settle that first", ErrRefused, order, Range{lane + 1, version - 1})
	}
	if err := deleteRows(ctx, tx, []string{event}); err != nil {
		return false, err
	}
	if !o.ordered || version <= lane {
		return false, nil
	}
	return true, advance(ctx, tx, map[string]int64{order: version})
}
