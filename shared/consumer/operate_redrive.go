package consumer

import (
	"cmp"
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/events"
)

// Redrive is a set of dead letters that are done again, fixed when it starts.
type Redrive struct {
	Service string    `json:"service"`
	ID      string    `json:"id,omitempty"` // empty of a dry run
	State   string    `json:"state"`        // running, done, stopped (by a failure), cancelled, dry run
	Who     string    `json:"who"`
	Reason  string    `json:"reason"`
	Rate    int       `json:"rate"` // letters per second
	Note    string    `json:"note,omitempty"`
	At      time.Time `json:"at"`
	Updated time.Time `json:"updated"`
	Total   int       `json:"total"`
	Stage   int       `json:"stage"`   // how many letters the stage under way has: 1, 10, then 100 each
	Pending int       `json:"pending"` // not tried
	Done    int       `json:"done"`
	Failed  int       `json:"failed"`
	Refused int       `json:"refused"`
	Gone    int       `json:"gone"` // settled by somebody else meanwhile
	// Items are those of a dry run, and of a status those that failed or were refused (at most 100).
	Items []RedriveItem `json:"items,omitempty"`
}

// RedriveItem is one letter of a redrive.
type RedriveItem struct {
	Letter  string `json:"letter"`
	Order   string `json:"order_id"`
	Version int64  `json:"version"`
	State   string `json:"state"`
	Note    string `json:"note,omitempty"`
}

// States of redrives and of their items.
const (
	redriveRunning, redriveDone, redriveStopped, redriveCancelled = "running", "done", "stopped", "cancelled"

	itemPending, itemTrying, itemDone, itemFailed, itemGone, itemRefused = "pending", "trying", "done", "failed", "gone", "refused"
)

const (
	// MaxRedrive is the most letters of one redrive.
	MaxRedrive = 10_000
	// MaxRate and DefaultRate are in letters per second.
	MaxRate, DefaultRate = 1000, 10

	redrivesKept = 100
	lookPage     = 50 // letters read with their bodies at a time
	shownItems   = 100
)

// StartRedrive fixes the set that f means now and lets the service's replicas do it. One runs at a time. With
// dry it only says what would be done, and changes nothing.
func (o *Operator) StartRedrive(ctx context.Context, a Actor, f LetterFilter, rate int, dry bool) (Redrive, error) {
	rate = cmp.Or(rate, DefaultRate)
	if rate < 1 || rate > MaxRate {
		return Redrive{}, fmt.Errorf("%w: the rate must be 1 to %d letters per second", ErrInvalid, MaxRate)
	}
	items, err := o.freeze(ctx, f)
	if err != nil {
		return Redrive{}, err
	}
	if dry {
		r := Redrive{Service: o.name, State: "dry run", Who: a.Who, Reason: a.Reason, Rate: rate, Total: len(items), Stage: stageAt(0), Items: items}
		for _, i := range items {
			if i.State == itemRefused {
				r.Refused++
			} else {
				r.Pending++
			}
		}
		return r, nil
	}
	id := "redrive-" + strings.ToLower(rand.Text()[:10])
	err = o.act(ctx, a, "redrive", id, func(ctx context.Context, tx *database.Tx) (string, error) {
		if !slices.ContainsFunc(items, func(i RedriveItem) bool { return i.State == itemPending }) {
			why := "no dead letter matches"
			if len(items) > 0 {
				why = items[0].Letter + ": " + items[0].Note
			}
			return "", fmt.Errorf("%w: nothing can be redriven: %s", ErrRefused, why)
		}
		if err := o.insertRedrive(ctx, tx, a, id, rate, items); err != nil {
			return "", err
		}
		return fmt.Sprintf("%d letters", len(items)), nil
	})
	if err != nil {
		return Redrive{}, err
	}
	return o.Redrive(ctx, id)
}

func (o *Operator) insertRedrive(ctx context.Context, tx *database.Tx, a Actor, id string, rate int, items []RedriveItem) error {
	var running string
	err := tx.QueryRowContext(ctx, `SELECT id FROM redrives WHERE state = 'running'`).Scan(&running)
	if err == nil {
		return fmt.Errorf("%w: %s is running: wait for it, or cancel it", ErrRefused, running)
	}
	if !errors.Is(err, sql.ErrNoRows) {
		return fmt.Errorf("read redrives: %w", err)
	}
	_, err = tx.ExecContext(ctx, `DELETE FROM redrives WHERE state <> 'running' AND id NOT IN (
		SELECT id FROM redrives ORDER BY created_at DESC LIMIT $1)`, redrivesKept)
	if err != nil {
		return fmt.Errorf("delete old redrives: %w", err)
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO redrives (id, state, who, reason, rate) VALUES ($1, 'running', $2, $3, $4)`,
		id, a.Who, a.Reason, rate)
	if database.Classify(err) == database.ClassUnique {
		return fmt.Errorf("%w: another redrive has just been started", ErrRefused)
	}
	if err != nil {
		return fmt.Errorf("insert redrive: %w", err)
	}
	position := 0
	for part := range slices.Chunk(items, maxBatch) {
		values, args := database.Rows(tx.Dialect(), part, func(i RedriveItem) []any {
			position++
			return []any{id, position - 1, i.Letter, i.Order, i.Version, i.State, clean(i.Note, maxText)}
		})
		_, err := tx.ExecContext(ctx, `INSERT INTO redrive_items (redrive_id, position, letter_id, order_id, version, state, note) `+values, args...)
		if err != nil {
			return fmt.Errorf("insert redrive: %w", err)
		}
	}
	return nil
}

// freeze reads which letters f means, by order and version, and which of them cannot be redriven.
func (o *Operator) freeze(ctx context.Context, f LetterFilter) ([]RedriveItem, error) {
	all, err := f.where()
	if err != nil {
		return nil, err
	}
	var items []RedriveItem
	for after := ""; ; {
		w := conditions{all.text, slices.Clone(all.args)}
		w.add(`d.id > ?`, after)
		where, args := w.limit("d.id", lookPage)
		found, err := readLetters(ctx, o.db.Read(), where, args...)
		if err != nil {
			return nil, err
		}
		for _, l := range found {
			after = l.id
			item := RedriveItem{Letter: l.id, Order: l.orderID, Version: l.version, State: itemPending}
			if e, err := l.redrivable(); err != nil {
				item.State, item.Note = itemRefused, err.Error()
			} else {
				item.Order, item.Version = e.Subject, e.Version
			}
			items = append(items, item)
		}
		if len(items) > MaxRedrive {
			return nil, fmt.Errorf("%w: more than %d letters match: name fewer", ErrInvalid, MaxRedrive)
		}
		if len(found) < lookPage {
			break
		}
	}
	slices.SortStableFunc(items, func(a, b RedriveItem) int {
		return cmp.Or(cmp.Compare(a.Order, b.Order), cmp.Compare(a.Version, b.Version), cmp.Compare(a.Letter, b.Letter))
	})
	return items, nil
}

func readLetters(ctx context.Context, q database.Querier, where string, args ...any) ([]*letter, error) {
	rows, err := q.QueryContext(ctx, `
		SELECT d.id, coalesce(d.event_id, ''), coalesce(d.order_id, ''), coalesce(d.version, 0), d.subject, d.stream_sequence,
			d.headers, d.body, d.reason, d.attempts, d.history, d.skipped
		FROM dead_letters d`+where, args...)
	if err != nil {
		return nil, fmt.Errorf("read dead letters: %w", err)
	}
	var out []*letter
	err = each(rows, func() error {
		l := &letter{}
		var skipped int
		if err := rows.Scan(&l.id, &l.eventID, &l.orderID, &l.version, &l.subject, &l.sequence, &l.headers, &l.body,
			&l.reason, &l.attempts, &l.history, &skipped); err != nil {
			return err
		}
		l.skipped = skipped == 1
		out = append(out, l)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read dead letters: %w", err)
	}
	return out, nil
}

// redrivable returns the letter's event, or why it cannot be done again.
func (l *letter) redrivable() (events.Event, error) {
	if l.skipped {
		return events.Event{}, errors.New("its order went on without it, so its effect would come too late: drop it")
	}
	e, err := events.Decode(l.body)
	if err != nil {
		return e, fmt.Errorf("it is no event that this release can read: %w", err)
	}
	return e, nil
}

// CancelRedrive ends a redrive before its next letter.
func (o *Operator) CancelRedrive(ctx context.Context, a Actor, id string) error {
	return o.act(ctx, a, "cancel redrive", id, func(ctx context.Context, tx *database.Tx) (string, error) {
		note := clean("cancelled by "+a.Who, maxText)
		if a.Reason != "" {
			note = clean(note+": "+a.Reason, maxText)
		}
		done, err := tx.ExecContext(ctx, `UPDATE redrives SET state = 'cancelled', note = $2, updated_at = `+tx.Dialect().Now()+`
			WHERE id = $1 AND state = 'running'`, id, note)
		if err != nil {
			return "", fmt.Errorf("cancel redrive: %w", err)
		}
		if n, err := done.RowsAffected(); err != nil || n == 0 {
			return "", errors.Join(fmt.Errorf("%w: %s has no redrive %q that runs", ErrNotFound, o.name, id), err)
		}
		return "cancelled", nil
	})
}

// Redrive returns how a redrive stands; without an id the newest.
func (o *Operator) Redrive(ctx context.Context, id string) (Redrive, error) {
	var w conditions
	if id != "" {
		w.add(`r.id = ?`, id)
	}
	found, err := o.redrives(ctx, w, 1)
	if err != nil {
		return Redrive{}, err
	}
	if len(found) == 0 {
		return Redrive{}, fmt.Errorf("%w: %s has no redrive %s", ErrNotFound, o.name, id)
	}
	r := found[0]
	rows, err := o.db.Read().QueryContext(ctx, `SELECT letter_id, order_id, version, state, note FROM redrive_items
		WHERE redrive_id = $1 AND state IN ('trying', 'failed', 'refused') ORDER BY position LIMIT $2`, r.ID, shownItems)
	if err != nil {
		return r, fmt.Errorf("read redrive: %w", err)
	}
	err = each(rows, func() error {
		var i RedriveItem
		if err := rows.Scan(&i.Letter, &i.Order, &i.Version, &i.State, &i.Note); err != nil {
			return err
		}
		r.Items = append(r.Items, i)
		return nil
	})
	if err != nil {
		return r, fmt.Errorf("read redrive: %w", err)
	}
	return r, nil
}

// Redrives returns the redrives that are remembered, the newest first, without their items.
func (o *Operator) Redrives(ctx context.Context) ([]Redrive, error) {
	return o.redrives(ctx, conditions{}, redrivesKept)
}

func (o *Operator) redrives(ctx context.Context, w conditions, limit int) ([]Redrive, error) {
	where, args := w.limit("r.created_at DESC, r.id", limit)
	counts := ""
	for _, states := range []string{"'pending', 'trying'", "'done'", "'failed'", "'refused'", "'gone'"} {
		counts += `, (SELECT count(*) FROM redrive_items i WHERE i.redrive_id = r.id AND i.state IN (` + states + `))`
	}
	rows, err := o.db.Read().QueryContext(ctx, `
		SELECT r.id, r.state, r.who, r.reason, r.rate, r.note, r.created_at, r.updated_at`+counts+` FROM redrives r`+where, args...)
	if err != nil {
		return nil, fmt.Errorf("read redrives: %w", err)
	}
	out := []Redrive{}
	err = each(rows, func() error {
		r := Redrive{Service: o.name}
		var at, updated int64
		if err := rows.Scan(&r.ID, &r.State, &r.Who, &r.Reason, &r.Rate, &r.Note, &at, &updated,
			&r.Pending, &r.Done, &r.Failed, &r.Refused, &r.Gone); err != nil {
			return err
		}
		r.At, r.Updated = database.Time(at), database.Time(updated)
		r.Total = r.Pending + r.Done + r.Failed + r.Refused + r.Gone
		r.Stage = stageAt(r.Done + r.Failed + r.Gone)
		out = append(out, r)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read redrives: %w", err)
	}
	return out, nil
}

// stageAt is the size of the stage after so many letters were tried: 1, 10, then 100 each.
func stageAt(tried int) int {
	switch {
	case tried < 1:
		return 1
	case tried < 11:
		return 10
	}
	return 100
}

// beginsStage reports whether a later stage begins after so many letters.
func beginsStage(tried int) bool {
	return tried == 1 || tried >= 11 && (tried-11)%100 == 0
}
