package consumer_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pillarbox/pillarbox/shared/consumer"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
	"github.com/stretchr/testify/require"
)

// refusals refuses every event of the listed orders for good, and remembers in which order events were tried.
type refusals struct {
	mu     sync.Mutex
	orders map[string]bool
	tried  []string
}

func refuse(orders ...string) *refusals {
	r := &refusals{}
	r.only(orders...)
	return r
}

func (r *refusals) only(orders ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.orders, r.tried = map[string]bool{}, nil
	for _, o := range orders {
		r.orders[o] = true
	}
}

func (r *refusals) check(_ context.Context, g consumer.Group) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range g.Due {
		r.tried = append(r.tried, e.ID)
		if r.orders[e.Subject] {
			return consumer.AsPermanent(errBroken)
		}
	}
	return nil
}

func (r *refusals) attempts() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.tried, " ")
}

// numbered are the names of n orders.
func numbered(n int) (orders []string) {
	for i := range n {
		orders = append(orders, fmt.Sprintf("o%03d", i))
	}
	return orders
}

func (b *bundle) redriveState(o *consumer.Operator, id string) consumer.Redrive {
	b.t.Helper()
	r, err := o.Redrive(context.Background(), id)
	require.NoError(b.t, err)
	return r
}

func TestRedriveInStages(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		orders := numbered(15)
		f := refuse(orders...)
		b.start(&staged{t: t, prepare: f.check})
		b.start(&staged{t: t, prepare: f.check})
		for _, o := range orders {
			b.stream.publish(event(o, 1), event(o, 2))
		}
		b.eventually(t, func() bool { return b.letters() == 15 && b.parked("waiting") == 15 }, "dead")
		f.only()
		o := b.operator()

		dry, err := o.StartRedrive(t.Context(), ada, consumer.LetterFilter{}, 0, true)
		require.NoError(t, err)
		require.Len(t, dry.Items, 15)
		require.Equal(t, 15, dry.Pending)
		require.Empty(t, b.actions(), "a dry run changes nothing")
		require.Zero(t, b.count(`SELECT count(*) FROM redrives`))
		require.Equal(t, 15, b.parked("dead"))

		r, err := o.StartRedrive(t.Context(), ada, consumer.LetterFilter{}, 1000, false)
		require.NoError(t, err)
		b.eventually(t, func() bool { return b.redriveState(o, r.ID).State == "done" }, "done")
		got := b.redriveState(o, "")
		require.Equal(t, 15, got.Done)
		require.Zero(t, got.Pending+got.Failed+got.Refused+got.Gone)
		require.Zero(t, b.letters())
		for _, order := range orders {
			b.eventually(t, func() bool { return b.versions(order) == "1 2" }, "the order goes on")
		}
		b.eventually(t, func() bool { return b.count(`SELECT count(*) FROM parked`) == 0 }, "no row")
		require.Equal(t, []string{"ada@desk redrive: 15 letters", "ada@desk redrive ended: done after 15 letters"}, b.actions())
	})
}

// TestRedriveStopsAtTheFirstFailure, and leaves what comes after as it was.
func TestRedriveStopsAtTheFirstFailure(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		orders := numbered(8)
		f := refuse(orders...)
		b.start(&staged{t: t, prepare: f.check})
		for _, o := range orders {
			b.stream.publish(event(o, 1))
		}
		b.eventually(t, func() bool { return b.letters() == 8 }, "dead")
		f.only("o003")
		o := b.operator()
		r, err := o.StartRedrive(t.Context(), ada, consumer.LetterFilter{}, 1000, false)
		require.NoError(t, err)
		b.eventually(t, func() bool { return b.redriveState(o, r.ID).State == "stopped" }, "stopped")
		got := b.redriveState(o, r.ID)
		require.Equal(t, "3 1 4", fmt.Sprint(got.Done, got.Failed, got.Pending))
		require.Contains(t, got.Note, "event-o003-1 failed again")
		require.Equal(t, "event-o003-1", got.Items[0].Letter)
		require.Equal(t, "o000-1 o001-1 o002-1 o003-1", f.attempts())
		require.Equal(t, 5, b.letters())
		require.Equal(t, 5, b.parked("dead"))
		require.Equal(t, []string{"2"}, b.text(`SELECT CAST(attempts AS TEXT) FROM dead_letters WHERE id = 'event-o003-1'`))

		f.only() // mended: the rest goes
		r, err = o.StartRedrive(t.Context(), ada, consumer.LetterFilter{IDs: []string{"event-o003-1", "event-o005-1"}}, 1000, false)
		require.NoError(t, err)
		b.eventually(t, func() bool { return b.redriveState(o, r.ID).State == "done" }, "done")
		require.Equal(t, 3, b.letters())
	})
}

// TestRedriveInVersionOrder: letters of one order go by version, whatever order they died in.
func TestRedriveInVersionOrder(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		b.config.Ordered = false // an ordered consumer has one dead event per order
		f := refuse("a")
		b.start(&staged{t: t, prepare: f.check})
		for _, v := range []int{3, 10, 1, 2} {
			b.stream.publish(event("a", v))
			b.eventually(t, func() bool { return b.count(`SELECT count(*) FROM dead_letters WHERE version = $1`, v) == 1 }, "dead")
		}
		f.only()
		o := b.operator()
		r, err := o.StartRedrive(t.Context(), ada, consumer.LetterFilter{Order: "a"}, 1000, false)
		require.NoError(t, err)
		b.eventually(t, func() bool { return b.redriveState(o, r.ID).State == "done" }, "done")
		require.Equal(t, "a-1 a-2 a-3 a-10", f.attempts())
		require.Zero(t, b.letters())
		require.Equal(t, 4, b.effects())
	})
}

func TestRedriveIsCancelled(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		orders := numbered(5)
		f := refuse(orders...)
		b.start(&staged{t: t, prepare: f.check})
		for _, o := range orders {
			b.stream.publish(event(o, 1))
		}
		b.eventually(t, func() bool { return b.letters() == 5 }, "dead")
		f.only()
		o := b.operator()
		r, err := o.StartRedrive(t.Context(), ada, consumer.LetterFilter{}, 1, false)
		require.NoError(t, err)
		_, err = o.StartRedrive(t.Context(), ada, consumer.LetterFilter{}, 1, false)
		require.ErrorIs(t, err, consumer.ErrRefused, "one at a time")
		b.eventually(t, func() bool { return b.redriveState(o, r.ID).Done == 1 }, "begun")
		require.NoError(t, o.CancelRedrive(t.Context(), ada, r.ID))
		require.ErrorIs(t, o.CancelRedrive(t.Context(), ada, r.ID), consumer.ErrNotFound)
		got := b.redriveState(o, r.ID)
		require.Equal(t, "cancelled", got.State)
		require.Equal(t, "cancelled by ada@desk: because", got.Note)
		require.GreaterOrEqual(t, got.Pending, 3)
	})
}

// TestRedriveGoesOnAfterACrash: the leader dies in the middle of a letter; the next one takes that letter up and
// does the rest of the set as it was, without what died later.
func TestRedriveGoesOnAfterACrash(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		b.config.Drain = 50 * time.Millisecond
		orders := numbered(4)
		f := refuse(orders...)
		f.orders["late"] = true
		hang := make(chan struct{}, 1)
		first := b.start(&staged{t: t, prepare: func(ctx context.Context, g consumer.Group) error {
			if err := f.check(ctx, g); err != nil || !has(g.Due, eventID("o002", 1)) {
				return err
			}
			hang <- struct{}{}
			<-ctx.Done() // the process is gone before it knows
			return ctx.Err()
		}})
		for _, o := range orders {
			b.stream.publish(event(o, 1))
		}
		b.eventually(t, func() bool { return b.letters() == 4 }, "dead")
		f.only("late")
		o := b.operator()
		r, err := o.StartRedrive(t.Context(), ada, consumer.LetterFilter{}, 1000, false)
		require.NoError(t, err)
		<-hang
		b.stream.publish(event("late", 1))
		b.eventually(t, func() bool { return b.letters() == 3 }, "a new letter")
		first.stop()
		require.Equal(t, "running", b.redriveState(o, r.ID).State)
		// As a killed process leaves it: the claim stands.
		b.exec(`UPDATE parked SET claimed_until = $1 WHERE event_id = 'o002-1'`, database.Micros(time.Now().Add(time.Hour)))
		b.start(&staged{t: t, prepare: f.check})
		b.eventually(t, func() bool { return b.redriveState(o, r.ID).State == "done" }, "done")
		require.Equal(t, 4, b.redriveState(o, r.ID).Done)
		require.Equal(t, []string{"event-late-1"}, b.text(`SELECT id FROM dead_letters`))
		require.Equal(t, 4, b.effects())
	})
}

// TestRedriveWaitsForAnOutage and burns nothing.
func TestRedriveWaitsForAnOutage(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		f := refuse("a", "b")
		var mu sync.Mutex
		down := false
		outage := func() error {
			mu.Lock()
			defer mu.Unlock()
			if down {
				return consumer.AsOutage(errBroken)
			}
			return nil
		}
		replica := b.start(&staged{t: t, probe: func(context.Context) error { return outage() },
			prepare: func(ctx context.Context, g consumer.Group) error {
				if err := outage(); err != nil {
					return err
				}
				return f.check(ctx, g)
			}})
		b.stream.publish(event("a", 1), event("b", 1))
		b.eventually(t, func() bool { return b.letters() == 2 }, "dead")
		f.only()
		mu.Lock()
		down = true
		mu.Unlock()
		o := b.operator()
		r, err := o.StartRedrive(t.Context(), ada, consumer.LetterFilter{}, 1000, false)
		require.NoError(t, err)
		b.eventually(t, func() bool { return replica.sub.pauses.Load() > 0 }, "paused")
		require.Equal(t, 2, b.redriveState(o, r.ID).Pending)
		mu.Lock()
		down = false
		mu.Unlock()
		b.eventually(t, func() bool { return b.redriveState(o, r.ID).State == "done" }, "done")
		require.Equal(t, 2, b.effects())
	})
}

// TestSkippedDuringARedrive: what a person decides meanwhile counts, and the letter stays.
func TestSkippedDuringARedrive(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		f := refuse("a")
		var down atomic.Bool
		outage := func(context.Context) error {
			if down.Load() {
				return consumer.AsOutage(errBroken)
			}
			return nil
		}
		b.start(&staged{t: t, probe: outage, prepare: func(ctx context.Context, g consumer.Group) error {
			if err := outage(ctx); err != nil {
				return err
			}
			return f.check(ctx, g)
		}})
		b.stream.publish(event("a", 1), event("a", 2))
		b.eventually(t, func() bool { return b.letters() == 1 && b.parked("waiting") == 1 }, "dead")
		f.only()
		down.Store(true)
		o := b.operator()
		_, err := o.StartRedrive(t.Context(), ada, consumer.LetterFilter{}, 1000, false)
		require.NoError(t, err)
		b.eventually(t, func() bool { return b.count(`SELECT count(*) FROM redrive_items WHERE state = 'trying'`) == 1 }, "under way")
		require.ErrorIs(t, o.Drop(t.Context(), ada, "event-a-1"), consumer.ErrRefused)
		require.NoError(t, o.Skip(t.Context(), ada, "a", consumer.Range{From: 1, To: 1}))
		down.Store(false)
		b.eventually(t, func() bool { return b.redriveState(o, "").State == "done" }, "over")
		require.Equal(t, 1, b.redriveState(o, "").Gone)
		b.eventually(t, func() bool { return b.versions("a") == "2" }, "its order went on")
		require.Equal(t, 1, b.letters())
	})
}

// TestRedriveRefuses what can have no effect, and says why.
func TestRedriveRefuses(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		f := refuse("a", "gap")
		b.start(&staged{t: t, prepare: f.check})
		b.stream.publish([]byte("noise"), event("a", 1), event("gap", 1))
		b.eventually(t, func() bool { return b.letters() == 3 }, "dead")
		o := b.operator()
		_, err := o.StartRedrive(t.Context(), ada, consumer.LetterFilter{Reason: "no such reason"}, 0, false)
		require.ErrorContains(t, err, "no dead letter matches")
		actions, err := o.Actions(t.Context(), 0, 1)
		require.NoError(t, err)
		require.Contains(t, actions[0].Result, "no dead letter matches", "a refused wish is recorded, too")
		_, err = o.StartRedrive(t.Context(), ada, consumer.LetterFilter{}, 100_000, false)
		require.ErrorIs(t, err, consumer.ErrInvalid)
		f.only()
		// A letter ahead of its lane: its predecessors were lost with a restored database.
		b.exec(`UPDATE parked SET version = 3 WHERE event_id = 'gap-1'`)
		b.exec(`UPDATE dead_letters SET body = $1 WHERE event_id = 'gap-1'`, []byte(replace(string(event("gap", 3)), "gap-3", "gap-1")))
		r, err := o.StartRedrive(t.Context(), ada, consumer.LetterFilter{}, 1000, false)
		require.NoError(t, err)
		b.eventually(t, func() bool { return b.redriveState(o, r.ID).State == "done" }, "done")
		got := b.redriveState(o, r.ID)
		require.Equal(t, "1 2", fmt.Sprint(got.Done, got.Refused))
		notes := got.Items[0].Note + got.Items[1].Note
		require.Contains(t, notes, "no event that this release can read")
		require.Contains(t, notes, "waits for versions 1 to 2")
		require.Equal(t, 2, b.letters())
	})
}

// TestRedriveOfWhatCanBeReadNow: a letter of a message that an older release could not read.
func TestRedriveOfWhatCanBeReadNow(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		b.exec(`INSERT INTO dead_letters (id, subject, headers, body, reason) VALUES ('message-7-abc', 'orders.events', '{}', $1, 'unknown type')`, event("a", 1))
		b.exec(`INSERT INTO dead_letters (id, subject, headers, body, reason) VALUES ('message-8-abc', 'orders.events', '{}', $1, 'unknown type')`, event("b", 1))
		f := refuse("b")
		b.start(&staged{t: t, prepare: f.check})
		o := b.operator()
		r, err := o.StartRedrive(t.Context(), ada, consumer.LetterFilter{}, 1000, false)
		require.NoError(t, err)
		b.eventually(t, func() bool { return b.redriveState(o, r.ID).State == "stopped" }, "the second fails")
		require.Equal(t, "1", b.versions("a"))
		require.Equal(t, []string{"event-b-1"}, b.text(`SELECT id FROM dead_letters`), "it has an event's id now")
	})
}

// TestRedriveGoesOnAlongTheRoute: what a route brought goes on to the next of it, once it took effect at last.
func TestRedriveGoesOnAlongTheRoute(t *testing.T) {
	t.Parallel()
	eachRouted(t, func(t *testing.T, r *routed) {
		f := refuse("a")
		r.start(&staged{t: t, prepare: f.check})
		r.send(route, event("a", 1))
		r.send(route, event("a", 2))
		r.eventually(t, func() bool { return r.letters() == 1 && r.parked("waiting") == 1 }, "dead")
		require.Empty(t, r.onward())
		f.only()
		o := r.operator()
		_, err := o.StartRedrive(t.Context(), ada, consumer.LetterFilter{}, 1000, false)
		require.NoError(t, err)
		r.eventually(t, func() bool { return r.redriveState(o, "").State == "done" }, "done")
		r.eventually(t, func() bool { return len(r.onward()) == 2 }, "handed on")
		require.Equal(t, []string{"audit audit,crm a-1", "audit audit,crm a-2"}, r.onward())
	})
}

// TestRedriveOfUnfinishedWork: an event that took effect and could not be finished is finished, and takes no second effect.
func TestRedriveOfUnfinishedWork(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		b.config.MaxAttempts = 2
		var mended atomic.Bool
		e := &staged{t: t, done: func(context.Context, consumer.Group) error {
			if !mended.Load() {
				panic("bug")
			}
			return nil
		}}
		b.start(e)
		b.stream.publish(event("a", 1))
		b.eventually(t, func() bool { return b.letters() == 1 && b.count(`SELECT count(*) FROM parked`) == 0 }, "dead")
		require.Equal(t, "1", b.versions("a"))
		mended.Store(true)
		o := b.operator()
		_, err := o.StartRedrive(t.Context(), ada, consumer.LetterFilter{}, 1000, false)
		require.NoError(t, err)
		b.eventually(t, func() bool { return b.redriveState(o, "").State == "done" }, "done")
		_, finished := e.doneEvents.Load(eventID("a", 1))
		require.True(t, finished)
		require.Equal(t, "1", b.versions("a"))
		require.Zero(t, b.letters())
	})
}

// TestRedriveInModeSingle: the replica that consumes does it.
func TestRedriveInModeSingle(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		b.config.Mode, b.config.Lease = consumer.ModeSingle, time.Second
		f := refuse("a", "b")
		for range 3 {
			b.start(&staged{t: t, prepare: f.check})
		}
		b.stream.publish(event("a", 1), event("b", 1))
		b.eventually(t, func() bool { return b.letters() == 2 }, "dead")
		f.only()
		o := b.operator()
		_, err := o.StartRedrive(t.Context(), ada, consumer.LetterFilter{}, 1000, false)
		require.NoError(t, err)
		b.eventually(t, func() bool { return b.redriveState(o, "").State == "done" }, "done")
		require.Equal(t, 2, b.effects())
	})
}
