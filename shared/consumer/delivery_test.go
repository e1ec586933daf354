package consumer_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/consumer"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
	"github.com/pillarbox/pillarbox/shared/logs"
	"github.com/stretchr/testify/require"
)

// tally is an effect that recognises nothing: each time that it takes effect one more is counted, in the transaction.
type tally struct {
	prepare, done func(id string) error
}

func (e *tally) each(do func(string) error, events []consumer.Event) error {
	for _, event := range events {
		if do != nil {
			if err := do(event.ID); err != nil {
				return err
			}
		}
	}
	return nil
}

func (e *tally) Prepare(_ context.Context, g consumer.Group) (consumer.Work, error) {
	return &tallied{e, g.Due}, e.each(e.prepare, g.Due)
}

func (e *tally) Probe(context.Context) error { return nil }

type tallied struct {
	*tally
	due []consumer.Event
}

func (w *tallied) Apply(ctx context.Context, tx *database.Tx, g consumer.Group) error {
	w.due = g.Due
	for _, event := range g.Due {
		_, err := tx.ExecContext(ctx, `INSERT INTO accounts (customer, points) VALUES ($1, 1)
			ON CONFLICT (customer) DO UPDATE SET points = accounts.points + 1`, event.ID)
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *tallied) Done(context.Context) error { return w.each(w.done, w.due) }
func (w *tallied) Discard(context.Context)    {}

func (b *bundle) effectsOf(id string) int {
	return b.count(`SELECT coalesce(max(points), 0) FROM accounts WHERE customer = $1`, id)
}

// crash is a place where the first replica that comes there stays for good.
type crash struct {
	once          sync.Once
	there, forget chan struct{}
}

func newCrash() *crash { return &crash{there: make(chan struct{}), forget: make(chan struct{})} }

func (c *crash) here(string) error {
	c.once.Do(func() {
		close(c.there)
		<-c.forget
	})
	return nil
}

// TestWhatACrashDoes is the law of each policy.
func TestWhatACrashDoes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		policy                    consumer.Delivery
		beforeEffect, afterEffect int // effects of the event that the crash met
	}{
		{consumer.EffectivelyOnce, 1, 1},
		{consumer.AtLeastOnce, 1, 2},
		{consumer.AtMostOnce, 0, 1},
	} {
		for where, want := range map[string]int{"before the effect": c.beforeEffect, "after the effect": c.afterEffect} {
			t.Run(string(c.policy)+" "+where, func(t *testing.T) {
				t.Parallel()
				eachRouted(t, func(t *testing.T, r *routed) {
					r.config.Delivery = c.policy
					if c.policy == consumer.AtMostOnce {
						r.ackWait = 3 * time.Second // a pull may stand for a second of it
					}
					at := newCrash()
					e := &tally{done: at.here}
					if where == "before the effect" {
						e = &tally{prepare: at.here}
					}
					away, err := broker.Connect(broker.Config{Server: r.server, Token: r.server.Token()}, logs.Discard())
					require.NoError(t, err)
					first := r.run(away, r.pub, e)
					r.send("", event("a", 1))
					<-at.there
					away.Close() // and nobody hears of it any more

					r.start(&tally{})
					r.send("", event("b", 1))
					r.eventually(t, func() bool { return r.effectsOf("b-1") == 1 && r.effectsOf("a-1") >= want }, "the other goes on")
					r.quiet()
					require.Equal(t, want, r.effectsOf("a-1"))
					// What the dead one still does changes nothing but its own event's lot, which was decided.
					close(at.forget)
					first.stop()
					require.Equal(t, 1, r.effectsOf("b-1"))
					r.noLetters(t)
				})
			})
		}
	}
}

// TestAtMostOnceLosesWhatFails: it is counted, and nothing is kept; the others of its batch are not touched.
func TestAtMostOnceLosesWhatFails(t *testing.T) {
	t.Parallel()
	eachRouted(t, func(t *testing.T, r *routed) {
		r.config.Delivery, r.ackWait = consumer.AtMostOnce, 30*time.Second
		for _, order := range []string{"a", "b", "c", "d"} {
			r.send(route, event(order, 1))
		}
		r.start(&tally{prepare: func(id string) error {
			if id == "b-1" {
				return errBroken
			}
			return nil
		}})
		r.eventually(t, func() bool { return len(r.onward()) == 3 }, "the others")
		for id, want := range map[string]int{"a-1": 1, "b-1": 0, "c-1": 1, "d-1": 1} {
			require.Equal(t, want, r.effectsOf(id), id)
		}
		r.lost(1)
	})
}

// TestAtMostOnceIsNotTriedAgainAfterItsCommit: what fails after it is counted as lost though it took effect, since it is
// not finished.
func TestAtMostOnceIsNotTriedAgainAfterItsCommit(t *testing.T) {
	t.Parallel()
	eachRouted(t, func(t *testing.T, r *routed) {
		r.config.Delivery, r.config.Batch, r.ackWait = consumer.AtMostOnce, 1, 30*time.Second
		var panics atomic.Int64
		r.start(&tally{done: func(id string) error {
			if id == "a-1" {
				panics.Add(1)
				panic("after the commit")
			}
			return nil
		}})
		r.send(route, event("a", 1))
		r.send(route, event("b", 1))
		r.eventually(t, func() bool { return len(r.onward()) == 1 }, "the other")
		r.eventually(t, func() bool { return r.effectsOf("a-1") == 1 && panics.Load() == 1 }, "the one")
		r.lost(1)
	})
}

// lost waits until n events are counted as lost; nothing is kept of them.
func (r *routed) lost(n int) {
	r.t.Helper()
	r.eventually(r.t, func() bool { return r.metric("consumer_events_total", "lost") == float64(n) }, "counted")
	r.quiet()
	require.Zero(r.t, r.metric("consumer_events_total", "parked"))
	require.Zero(r.t, r.count(`SELECT count(*) FROM parked`))
	r.noLetters(r.t)
}

// TestNoOrderNoWaiting: without effectively-once each version takes effect as it comes, and failures still park.
func TestNoOrderNoWaiting(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		b.config.Delivery = consumer.AtLeastOnce
		var broken atomic.Bool
		broken.Store(true)
		b.start(&tally{prepare: func(id string) error {
			if id == "a-2" && broken.Load() {
				return errBroken
			}
			return nil
		}})
		b.stream.publish(event("a", 3), event("a", 2))
		b.eventually(t, func() bool { return b.effectsOf("a-3") == 1 && b.parked("parked") == 1 }, "the third first")
		b.stream.publish(event("a", 1), event("a", 3))
		b.eventually(t, func() bool { return b.effectsOf("a-1") == 1 && b.effectsOf("a-3") == 2 }, "again, since it came again")
		broken.Store(false)
		b.eventually(t, func() bool { return b.effectsOf("a-2") == 1 && b.parked("parked") == 0 }, "the failed one in the end")
		require.Zero(t, b.count(`SELECT count(*) FROM lanes`))
	})
}

// TestPolicyIsChanged: what waits for its predecessor takes effect when nothing waits any more.
func TestPolicyIsChanged(t *testing.T) {
	t.Parallel()
	for _, policy := range []consumer.Delivery{consumer.AtLeastOnce, consumer.AtMostOnce} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
				b := setup(t, db)
				r := b.start(&tally{})
				b.stream.publish(event("a", 1), eventPlaced("a", 3, notBefore()), eventPlaced("b", 2, notBefore()))
				b.eventually(t, func() bool { return b.effectsOf("a-1") == 1 && b.parked("waiting") == 2 }, "waiting")
				r.stop()
				b.config.Delivery = policy
				b.start(&tally{})
				b.eventually(t, func() bool { return b.effectsOf("a-3") == 1 && b.effectsOf("b-2") == 1 }, "taken up")
				b.eventually(t, func() bool { return b.count(`SELECT count(*) FROM parked`) == 0 }, "no row left")
			})
		})
	}
}

func TestDeliveryIsChecked(t *testing.T) {
	t.Parallel()
	require.ErrorContains(t, consumer.Config{Name: "x", Delivery: "twice"}.Validate(), "delivery must be")
	require.ErrorContains(t, consumer.Settings{Delivery: "twice"}.Validate("P_"), "P_DELIVERY must be effectively-once")
	require.Equal(t, consumer.AtMostOnce, consumer.Settings{Delivery: consumer.AtMostOnce}.Consumer("x", true).Delivery)
	require.Equal(t, consumer.EffectivelyOnce, consumer.Settings{}.Consumer("x", true).Delivery)
}
