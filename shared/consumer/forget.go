package consumer

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/events"
	"github.com/pillarbox/pillarbox/shared/retention"
)

// A lane may go when nothing can bring an event of its order again that it would have to recognise. What can:
//
//   - a message that is still in the stream, or that a refill puts there, which publishes again what was published
//     within the store's horizon: so lanes are kept for longer than the horizon, counted back from the oldest message
//     in the stream. A lane of before was last advanced before anything that the stream holds or may get was published.
//   - a replay, or a copy of the stream from before: for these the consumer remembers up to when lanes were removed
//     (consumer_state.removed_up_to, W). An event from before W without a lane was handled, if it comes by a replay or
//     its message is from before W too. It is not if its message is new: then it was stuck in the outbox.
//
// W is written with the first lane that goes, and while all that happened before W has been handled: no replay is under
// way, and nothing from before W is in the stream. A new event of an order that was forgotten waits like any
// event without a predecessor; it is marked as such, and the order begins with it (see ADR 2).

const (
	// KeepMargin is how much longer than the store's horizon a consumer must remember: for clocks that differ, and for
	// what is on its way.
	KeepMargin = 2 * time.Hour
	// clockSlack is how much the clocks of a service's database and of the store's may differ.
	clockSlack = time.Hour
)

// The defaults of what is kept how long.
const (
	DefaultKeep        = 720 * time.Hour
	DefaultKeepLetters = 2160 * time.Hour
	DefaultKeepActions = 8760 * time.Hour
)

// KeepRange is what KEEP of an ordered service may be; the store's horizon is an hour at least.
const KeepRange = "3h to 87600h"

// ValidKeep reports whether keep is within it.
func ValidKeep(keep time.Duration) bool { return keepable(time.Hour+KeepMargin, keep) }

func keepable(least, keep time.Duration) bool { return keep >= least && keep <= 87600*time.Hour }

// ErrKeepTooShort means that a consumer would forget events that the store can still publish again.
var ErrKeepTooShort = errors.New("what was handled is forgotten too soon")

// CheckKeep is the rule that dedup outlives replay.
func CheckKeep(keep, horizon time.Duration) error {
	if keep < horizon+KeepMargin {
		return fmt.Errorf("%w: %s, and must be at least PILLARBOX_STORE_HORIZON (%s) and %s more",
			ErrKeepTooShort, keep, horizon, KeepMargin)
	}
	return nil
}

// Keeping says how long a consumer keeps what.
type Keeping struct {
	Handled time.Duration // what recognises events: lanes and Own. Default DefaultKeep
	Letters time.Duration // skipped dead letters. Default DefaultKeepLetters
	Actions time.Duration // operators' actions, redrives that are over. Default DefaultKeepActions
	// Horizon is how far back the store can publish events again; false: not known yet (outbox.Registrar).
	Horizon func() (time.Duration, bool)
	// FirstStored is when the oldest message in the stream came into it; zero: it is empty (broker.Conn.FirstStored).
	FirstStored func(ctx context.Context) (time.Time, error)
	// Holds are conditions in SQL on lanes.order_id under which a lane stays.
	Holds []string
	// Own are the service's own rows that recognise events; their Keep and UpTo are set.
	Own []retention.Rule
}

// Retention are the rules by which this consumer's old rows go. Parked events and unsettled dead letters are
// obligations: no rule removes them.
func (c *Consumer) Retention(k Keeping) []retention.Rule {
	k.Handled = cmp.Or(k.Handled, DefaultKeep)
	k.Letters = cmp.Or(k.Letters, DefaultKeepLetters)
	k.Actions = cmp.Or(k.Actions, DefaultKeepActions)
	upTo := func(ctx context.Context, now time.Time) (time.Time, error) { return c.handledUpTo(ctx, k, now) }
	rules := slices.Clone(k.Own)
	if c.Ordered {
		lanes := retention.Rule{Name: "lanes", Bite: removeLanes(k.Holds), Oldest: `SELECT min(updated_at) FROM lanes`}
		rules = append(rules, lanes)
	}
	for n := range rules {
		rules[n].Keep, rules[n].UpTo, rules[n].Bite = k.Handled, upTo, c.forgetting(rules[n].Bite)
	}
	return append(rules,
		retention.Rule{Name: "skipped_letters", Keep: k.Letters, Bite: removeSkipped,
			Oldest: `SELECT min(settled_at) FROM dead_letters WHERE skipped = 1 AND settled_at > 0`},
		retention.Rule{Name: "operator_actions", Keep: k.Actions, Bite: retention.Rows("operator_actions", "id", "at", ""),
			Oldest: `SELECT min(at) FROM operator_actions`},
		retention.Rule{Name: "redrives", Keep: k.Actions, Bite: removeRedrives,
			Oldest: `SELECT min(updated_at) FROM redrives WHERE state <> 'running'`},
	)
}

// handledUpTo is the time before which all that happened has been handled here and is in the stream no longer.
func (c *Consumer) handledUpTo(ctx context.Context, k Keeping, now time.Time) (time.Time, error) {
	if !c.begun.Load() {
		return now, fmt.Errorf("%w: the consumer has not begun", retention.ErrNotNow)
	}
	if c.seat.standsBy() { // and hears nothing of replays
		return now, retention.ErrElsewhere
	}
	if c.catchingUp() {
		return now, fmt.Errorf("%w: events of the past are still coming", retention.ErrNotNow)
	}
	horizon, known := k.Horizon()
	if !known {
		return now, fmt.Errorf("%w: the store has not said yet how far back it can publish again", retention.ErrNotNow)
	}
	if err := CheckKeep(k.Handled, horizon); err != nil {
		return now, err
	}
	first, err := k.FirstStored(ctx)
	if err != nil {
		return now, fmt.Errorf("%w: what the stream holds is not known: %w", retention.ErrNotNow, err)
	}
	if first.IsZero() || first.After(now) {
		first = now
	}
	return first, nil
}

// forgetting writes down, in the same transaction, up to when rows are removed.
func (c *Consumer) forgetting(bite retention.Bite) retention.Bite {
	return func(ctx context.Context, tx *database.Tx, before time.Time, limit int) (int64, error) {
		n, err := bite(ctx, tx, before, limit)
		if err != nil || n == 0 {
			return n, err
		}
		_, err = tx.ExecContext(ctx, `UPDATE consumer_state SET removed_up_to = $2 WHERE name = $1 AND removed_up_to < $2`,
			c.Name, database.Micros(before.Add(clockSlack)))
		if err != nil {
			return n, fmt.Errorf("write what is forgotten: %w", err)
		}
		return n, nil
	}
}

// removeLanes removes lanes of orders at rest: nothing is parked, nothing dead. The lanes are locked first, then looked at
// again: who parks an event of an order holds its lane.
func removeLanes(holds []string) retention.Bite {
	free := `NOT EXISTS (SELECT 1 FROM parked p WHERE p.order_id = lanes.order_id)
		AND NOT EXISTS (SELECT 1 FROM dead_letters d WHERE d.order_id = lanes.order_id)`
	for _, hold := range holds {
		free += ` AND NOT (` + hold + `)`
	}
	return func(ctx context.Context, tx *database.Tx, before time.Time, limit int) (int64, error) {
		rows, err := tx.QueryContext(ctx, `SELECT order_id FROM lanes WHERE updated_at < $1 AND `+free+`
			ORDER BY updated_at LIMIT $2`+tx.Dialect().SkipLocked(), database.Micros(before), limit)
		if err != nil {
			return 0, fmt.Errorf("look for old lanes: %w", err)
		}
		var orders []string
		err = each(rows, func() error {
			var order string
			err := rows.Scan(&order)
			orders = append(orders, order)
			return err
		})
		if err != nil || len(orders) == 0 {
			return 0, err
		}
		condition, arg := tx.Dialect().AnyOf(2, orders)
		done, err := tx.ExecContext(ctx, `DELETE FROM lanes WHERE order_id `+condition+` AND updated_at < $1 AND `+free,
			database.Micros(before), arg)
		if err != nil {
			return 0, fmt.Errorf("delete lanes: %w", err)
		}
		return done.RowsAffected()
	}
}

// removeSkipped removes letters that their orders passed over long ago. They count from when they are first seen here.
func removeSkipped(ctx context.Context, tx *database.Tx, before time.Time, limit int) (int64, error) {
	_, err := tx.ExecContext(ctx, `UPDATE dead_letters SET settled_at = `+tx.Dialect().Now()+` WHERE id IN (
		SELECT id FROM dead_letters WHERE skipped = 1 AND settled_at = 0 LIMIT $1`+tx.Dialect().SkipLocked()+`)`, limit)
	if err != nil {
		return 0, fmt.Errorf("date skipped letters: %w", err)
	}
	return retention.Rows("dead_letters", "id", "settled_at", "skipped = 1 AND settled_at > 0")(ctx, tx, before, limit)
}

// removeRedrives removes what is remembered of redrives that are over, their letters first.
func removeRedrives(ctx context.Context, tx *database.Tx, before time.Time, limit int) (int64, error) {
	const over = `SELECT id FROM redrives WHERE state <> 'running' AND updated_at < $1`
	done, err := tx.ExecContext(ctx, `DELETE FROM redrive_items WHERE (redrive_id, position) IN (
		SELECT redrive_id, position FROM redrive_items WHERE redrive_id IN (`+over+`) ORDER BY redrive_id, position LIMIT $2)`,
		database.Micros(before), limit)
	if err != nil {
		return 0, fmt.Errorf("delete redrive: %w", err)
	}
	n, err := done.RowsAffected()
	if err != nil || n == int64(limit) {
		return n, err
	}
	if _, err := tx.ExecContext(ctx, `DELETE FROM redrives WHERE id IN (`+over+`)`, database.Micros(before)); err != nil {
		return 0, fmt.Errorf("delete redrive: %w", err)
	}
	return n, nil
}

// RemovedUpTo is the time of events before which what the consumer called name remembers of them may be gone; zero:
// everything since its beginning is there.
func RemovedUpTo(ctx context.Context, q database.Querier, name string) (time.Time, error) {
	var micros int64
	err := q.QueryRowContext(ctx, `SELECT removed_up_to FROM consumer_state WHERE name = $1`, name).Scan(&micros)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return time.Time{}, fmt.Errorf("read what is forgotten: %w", err)
	}
	if micros == 0 {
		return time.Time{}, nil
	}
	return database.Time(micros), nil
}

// RemovedUpTo is the function of this name for the operator's consumer.
func (o *Operator) RemovedUpTo(ctx context.Context) (time.Time, error) {
	return RemovedUpTo(ctx, o.db.Read(), o.name)
}

// sourced is when an item's message was put into the stream, as far as that tells whether the event is new: a
// replay's message is always young, and says nothing.
func sourced(topic string, stored time.Time) time.Time {
	if strings.HasPrefix(topic, events.ReplayTopic("")) {
		return time.Time{}
	}
	if stored.IsZero() {
		return time.Now() // of an unknown origin: new
	}
	return stored
}

// recognise marks those items whose orders have none because it was removed: events
// that were handled, and new events of such orders.
func (c *Consumer) recognise(ctx context.Context, q database.Querier, items []*item, lanes map[string]int64) error {
	var upTo time.Time
	asked := false
	for _, i := range items {
		i.handled, i.forgotten = false, false
		if i.stored || lanes[i.Subject] != 0 || i.Version == 1 && time.Since(i.sourced) < clockSlack {
			continue // most of them
		}
		if !asked {
			var err error
			if upTo, err = RemovedUpTo(ctx, q, c.Name); err != nil {
				return err
			}
			asked = true
		}
		i.handled = i.Time.Before(upTo) && i.sourced.Before(upTo)
		if !i.handled {
			order, err := i.Order()
			i.forgotten = err == nil && order.PlacedAt.Before(upTo)
		}
	}
	return nil
}
