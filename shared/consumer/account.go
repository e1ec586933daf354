package consumer

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/reconcile"
)

// Evidence is what a service's own tables say of events. Its methods only read.
type Evidence interface {
	// Proofs returns, by event id, those of the events that have taken effect.
	Proofs(ctx context.Context, q database.Querier, ids []string) (map[string]Proof, error)
	// Held is a page of the events of orders that have taken effect, after a cursor that only this method reads; "" begins.
	// The last one's cursor is returned, "" when there is nothing more.
	Held(ctx context.Context, q database.Querier, w reconcile.Window, cursor string) ([]reconcile.HeldEvent, string, error)
}

// Proof is one event's.
type Proof struct {
	In   reconcile.Standing // Done, InFlight, Dead or Unproven
	Many bool               // it took effect more than once
	Note string
}

// AccountConfig says what a consumer's account is about.
type AccountConfig struct {
	Name    string
	Ordered bool
	// Evidence is required when it is not Ordered. Without it an event counts as having taken effect when its order's lane has
	// reached it.
	Evidence Evidence
	// Forgets: the evidence is removed together with the lanes.
	Forgets bool
	// Keep is how long what became of an event without an effect is remembered: the shorter of the times of letters and of actions. Zero: for ever.
	Keep time.Duration
}

// Account says of events what a consumer knows of them (reconcile.Subscriber). It works on the database alone.
type Account struct {
	AccountConfig
	db *database.DB
}

// NewAccount does no I/O.
func NewAccount(c AccountConfig, db *database.DB) *Account {
	c.Forgets = c.Forgets || c.Evidence == nil
	return &Account{c, db}
}

// Account is a service's with these settings. What the policy of delivery loses is lost here too.
func (s Settings) Account(name string, ordered bool, e Evidence, db *database.DB) *Account {
	s = s.WithDefaults()
	return NewAccount(AccountConfig{
		Name: name, Ordered: ordered && s.Delivery == EffectivelyOnce, Evidence: e, Keep: min(s.KeepLetters, s.KeepActions),
	}, db)
}

// Name is the consumer's.
func (a *Account) Name() string { return a.AccountConfig.Name }

// knowledge is what the tables say of some events. The order of reading matters: a row of parked goes after the effect
// came, and the effect comes with the lane.
type knowledge struct {
	now       time.Time
	beginning beginning
	removed   time.Time // lanes of orders at rest since before may be gone; zero: none is
	parked    map[string]parkedFact
	letters   map[string]letterFact
	proofs    map[string]Proof
	lanes     map[string]int64
	settled   map[string]bool
}

type parkedFact struct {
	state  string
	onward []string
	note   string
}

type letterFact struct {
	skipped bool
	onward  []string
	note    string
}

// States says of each event where it is.
func (a *Account) States(ctx context.Context, asked []reconcile.Event) (answer reconcile.Answer, err error) {
	if err := reconcile.CheckPage(len(asked)); err != nil {
		return answer, err
	}
	answer.States = make([]reconcile.State, len(asked))
	if len(asked) == 0 {
		return answer, nil
	}
	k, err := a.know(ctx, asked)
	if err != nil {
		return answer, fmt.Errorf("look up events: %w", err)
	}
	answer.CompleteSince = a.completeSince(k)
	for n, e := range asked {
		answer.States[n] = a.state(k, e)
	}
	return answer, nil
}

func (a *Account) know(ctx context.Context, asked []reconcile.Event) (k knowledge, err error) {
	ids, orders := make([]string, len(asked)), make([]string, len(asked))
	for n, e := range asked {
		ids[n], orders[n] = e.ID, e.Order
	}
	q := a.db.Read()
	if k.now, err = a.db.Now(ctx); err != nil {
		return k, fmt.Errorf("read clock: %w", err)
	}
	if k.beginning, k.removed, err = a.begun(ctx, q); err != nil {
		return k, err
	}
	if k.parked, err = parkedFacts(ctx, q, ids); err != nil {
		return k, err
	}
	if k.letters, err = letterFacts(ctx, q, ids); err != nil {
		return k, err
	}
	if a.Evidence != nil {
		if k.proofs, err = a.Evidence.Proofs(ctx, q, ids); err != nil {
			return k, err
		}
	}
	if a.Ordered {
		if k.lanes, err = readLanes(ctx, q, sorted(orders)); err != nil {
			return k, err
		}
	}
	k.settled, err = a.settledByPerson(ctx, q, k, asked)
	return k, err
}

// completeSince is the time of the oldest event of which nothing can have been removed.
func (a *Account) completeSince(k knowledge) (since time.Time) {
	if a.Keep > 0 {
		since = k.now.Add(-a.Keep)
	}
	if a.Forgets && k.removed.After(since) {
		since = k.removed
	}
	return since.UTC()
}

// state is the one of an event; more than one is a finding.
func (a *Account) state(k knowledge, e reconcile.Event) (s reconcile.State) {
	proof, proven := k.proofs[e.ID]
	row, stands := k.parked[e.ID]
	letter, dead := k.letters[e.ID]
	lane, standing := k.lanes[e.Order]
	if a.Evidence == nil && a.Ordered && e.Version <= lane && !dead {
		proof, proven = Proof{In: reconcile.Done}, true
	}
	s.Note = row.note
	s.Onward = sorted(row.onward, letter.onward)
	switch {
	case stands && proven:
		// Its effect is in, and its work is still to be finished, or it is still to be handed on.
		s.In = []reconcile.Standing{reconcile.InFlight}
		if row.state == stateDead {
			s.In = []reconcile.Standing{proof.In, reconcile.Dead}
		}
	case stands:
		s.In = []reconcile.Standing{standings[row.state]}
	case proven:
		s.In, s.Note = []reconcile.Standing{proof.In}, proof.Note
		if dead && proof.In != reconcile.Dead && proof.In != reconcile.InFlight {
			s.In, s.Note = append(s.In, reconcile.Dead), letter.note
		}
		if !dead && proof.In == reconcile.Dead {
			s.In = []reconcile.Standing{reconcile.Settled} // its letter was dropped
		}
	case dead:
		s.In, s.Note = []reconcile.Standing{reconcile.Dead}, letter.note
	case k.beginning.exempts(e.At):
		s.In = []reconcile.Standing{reconcile.Exempt}
	case k.settled[e.ID]:
		s.In = []reconcile.Standing{reconcile.Settled}
	case a.Ordered && e.Version <= lane:
		s.In = []reconcile.Standing{reconcile.Passed}
	default:
		s.In = []reconcile.Standing{reconcile.None}
	}
	if proof.Many {
		s.In = append(s.In, proof.In)
	}
	if forgotten := !standing && e.At.Before(k.removed); proven && a.Ordered && lane < e.Version && !forgotten {
		s.Lane = &lane
	}
	return s
}

var standings = map[string]reconcile.Standing{
	stateWaiting: reconcile.Waiting, stateParked: reconcile.Parked, stateDead: reconcile.Dead,
}

// beginningSlack is how much earlier the time within an event may be than that of its row at the store.
const beginningSlack = time.Second

// exempts: the event may have been there before this consumer, and was not promised to it.
func (b beginning) exempts(at time.Time) bool {
	if b.from != "" {
		return at.Before(b.since.Add(beginningSlack))
	}
	return at.Before(b.started)
}

// begun reads where the consumer begins, and what it has forgotten. One that has never started has done neither.
func (a *Account) begun(ctx context.Context, q database.Querier) (b beginning, removed time.Time, err error) {
	var started, since, upTo int64
	err = q.QueryRowContext(ctx, `SELECT started_at, from_setting, from_time, removed_up_to FROM consumer_state WHERE name = $1`, a.Name()).
		Scan(&started, &b.from, &since, &upTo)
	if errors.Is(err, sql.ErrNoRows) {
		return b, removed, nil
	}
	if err != nil {
		return b, removed, fmt.Errorf("read consumer state: %w", err)
	}
	b.started, b.since = database.Time(started), database.Time(since)
	if upTo > 0 {
		removed = database.Time(upTo).Add(clockSlack)
	}
	return b, removed, nil
}

func parkedFacts(ctx context.Context, q database.Querier, ids []string) (map[string]parkedFact, error) {
	condition, arg := q.Dialect().AnyOf(1, ids)
	rows, err := q.QueryContext(ctx, `SELECT event_id, state, headers, last_error FROM parked WHERE event_id `+condition, arg)
	if err != nil {
		return nil, fmt.Errorf("read parked: %w", err)
	}
	found := map[string]parkedFact{}
	err = each(rows, func() error {
		var id, headers string
		var f parkedFact
		err := rows.Scan(&id, &f.state, &headers, &f.note)
		f.onward = onwardOf(headers)
		found[id] = f
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read parked: %w", err)
	}
	return found, nil
}

func letterFacts(ctx context.Context, q database.Querier, ids []string) (map[string]letterFact, error) {
	letters := make([]string, len(ids))
	for n, id := range ids {
		letters[n] = letterID(id)
	}
	condition, arg := q.Dialect().AnyOf(1, letters)
	rows, err := q.QueryContext(ctx, `SELECT event_id, headers, reason, skipped FROM dead_letters WHERE id `+condition, arg)
	if err != nil {
		return nil, fmt.Errorf("read dead letters: %w", err)
	}
	found := map[string]letterFact{}
	err = each(rows, func() error {
		var id, headers string
		var skipped int
		var f letterFact
		err := rows.Scan(&id, &headers, &f.note, &skipped)
		f.onward, f.skipped = onwardOf(headers), skipped == 1
		found[id] = f
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read dead letters: %w", err)
	}
	return found, nil
}

// onwardOf are the consumers that get an event after this one, by its stored headers.
func onwardOf(headers string) []string {
	route, _ := storedRoute(headers) // a row that cannot be read has its letter
	if len(route) < 2 {
		return nil
	}
	return route[1:]
}

// settledByPerson finds, among events of which nothing is left, those that a person dropped, or whose order a person let go on.
func (a *Account) settledByPerson(ctx context.Context, q database.Querier, k knowledge, asked []reconcile.Event) (map[string]bool, error) {
	settled := map[string]bool{}
	var missing []reconcile.Event
	for _, e := range asked {
		_, proven := k.proofs[e.ID]
		_, stands := k.parked[e.ID]
		_, dead := k.letters[e.ID]
		if !proven && !stands && !dead && (!a.Ordered || e.Version <= k.lanes[e.Order]) {
			missing = append(missing, e)
		}
	}
	if len(missing) == 0 {
		return settled, nil
	}
	rows, err := q.QueryContext(ctx, `SELECT action, target FROM operator_actions WHERE action IN ('drop', 'skip')
		AND (result LIKE 'dropped%' OR result LIKE 'version%skipped')`)
	if err != nil {
		return nil, fmt.Errorf("read actions: %w", err)
	}
	err = each(rows, func() error {
		var action, target string
		if err := rows.Scan(&action, &target); err != nil {
			return err
		}
		var skipped struct {
			Order string `json:"order"`
			Range
		}
		if action == "skip" && json.Unmarshal([]byte(target), &skipped) != nil {
			return nil // no action of this release
		}
		for _, e := range missing {
			if target == letterID(e.ID) || e.Order == skipped.Order && e.Version >= skipped.From && e.Version <= skipped.To {
				settled[e.ID] = true
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read actions: %w", err)
	}
	return settled, nil
}
