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

// partner is what an effect calls: down for everybody, or only for orders that begin with "bad".
type partner struct {
	down  atomic.Bool
	calls atomic.Int64
}

func (p *partner) check(_ context.Context, g consumer.Group) error {
	p.calls.Add(1)
	for _, e := range g.Due {
		if p.down.Load() || strings.HasPrefix(e.Subject, "bad") {
			return errBroken
		}
	}
	return nil
}

// TestManyFailuresInARowAreAnOutage: a partner that is down pauses the consumer, and from then on burns no
// attempt, however long it lasts; when it is back everything goes through.
func TestManyFailuresInARowAreAnOutage(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		b.config.MaxAttempts = 4
		b.config.OutageAfter = time.Millisecond
		p := &partner{}
		p.down.Store(true)
		r := b.start(&staged{t: t, prepare: p.check})
		const orders = 60
		for o := range orders {
			b.stream.publish(event(fmt.Sprint("order-", o), 1))
		}
		b.eventually(t, func() bool { return r.sub.pauses.Load() >= 4 }, "paused again and again")
		b.noLetters(t)
		require.LessOrEqual(t, b.count(`SELECT coalesce(sum(attempts), 0) FROM parked`), 12, "the failures before it was known")
		calls := p.calls.Load()
		b.eventually(t, func() bool { return r.sub.pauses.Load() >= 6 }, "still probing")
		require.Less(t, p.calls.Load()-calls, int64(100), "not hammered")
		p.down.Store(false)
		b.eventually(t, func() bool { return b.effects() == orders }, "everything goes through")
		b.noLetters(t)
	})
}

// TestPoisonIsNoOutage: bad orders among good ones, or many of them in a burst between good ones, do not pause
// anything, and end as dead letters.
func TestPoisonIsNoOutage(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		b.config.MaxAttempts = 3
		b.config.OutageAfter = 20 * time.Second // however slow the machine
		r := b.start(&staged{t: t, prepare: (&partner{}).check})
		const burst, good = 50, 200
		for o := range good {
			b.stream.publish(event(fmt.Sprint("good-", o), 1))
			if o%100 == 50 {
				b.stream.publish(event(fmt.Sprint("bad-some-", o), 1)) // one in a hundred
			}
		}
		for o := range burst {
			b.stream.publish(event(fmt.Sprint("bad-burst-", o), 1))
		}
		b.eventually(t, func() bool { return b.letters() == burst+2 }, "dead letters")
		require.Equal(t, good, b.effects())
		require.Zero(t, r.sub.pauses.Load())
	})
}

// TestPoisonCannotHoldUpWhatComesAfter: also when a burst was taken for an outage the good events among and behind
// it get through.
func TestPoisonCannotHoldUpWhatComesAfter(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		b.config.OutageAfter = time.Nanosecond
		const burst = 40
		for o := range burst {
			b.stream.publish(event(fmt.Sprint("bad-", o), 1))
		}
		r := b.start(&staged{t: t, prepare: (&partner{}).check})
		b.eventually(t, func() bool { return r.sub.pauses.Load() > 0 }, "taken for an outage")
		b.stream.publish(event("good", 1))
		b.eventually(t, func() bool { return b.versions("good") == "1" }, "reached")
	})
}

// TestRefusedAtTheHead: events that are refused for good cost those behind them nothing.
func TestRefusedAtTheHead(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		b.config.Backoff, b.config.MaxBackoff = time.Hour, time.Hour // nothing waits for another attempt
		orders := numbered(8)
		f := refuse(orders...)
		for _, o := range orders {
			b.stream.publish(event(o, 1))
		}
		for o := range 30 {
			b.stream.publish(event(fmt.Sprint("good-", o), 1))
		}
		r := b.start(&staged{t: t, prepare: f.check})
		b.eventually(t, func() bool { return b.effects() == 30 && b.letters() == 8 }, "the good ones are out")
		require.Zero(t, r.sub.pauses.Load())
	})
}

// TestAHangingOrderLeavesOthersGoing: a handler that hangs for one order costs the group its time-out, once; then
// that order waits alone.
func TestAHangingOrderLeavesOthersGoing(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		b.config.Timeout = 2 * time.Second
		b.config.Backoff, b.config.MaxBackoff = time.Hour, time.Hour
		b.start(&staged{t: t, prepare: func(ctx context.Context, g consumer.Group) error {
			if has(g.Due, eventID("hangs", 1)) {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}})
		b.stream.publish(event("hangs", 1))
		for o := range 100 {
			b.stream.publish(event(fmt.Sprint("good-", o), 1))
		}
		b.eventually(t, func() bool { return b.effects() == 100 }, "the others")
		b.eventually(t, func() bool { return b.parked("parked") == 1 }, "parked")
		b.noLetters(t)
	})
}

// TestCadenceOfRetries: neither one replica nor three make more attempts than the waits between them allow.
func TestCadenceOfRetries(t *testing.T) {
	t.Parallel()
	for _, replicas := range []int{1, 3} {
		t.Run(fmt.Sprint(replicas), func(t *testing.T) {
			t.Parallel()
			databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
				b := setup(t, db)
				b.config.MaxAttempts = 1000
				b.config.Backoff, b.config.MaxBackoff = 100*time.Millisecond, 100*time.Millisecond
				var mu sync.Mutex
				var at []time.Time
				for range replicas {
					b.start(&staged{t: t, prepare: func(context.Context, consumer.Group) error {
						mu.Lock()
						defer mu.Unlock()
						at = append(at, time.Now())
						return errBroken
					}})
				}
				b.stream.publish(event("a", 1))
				const window = 2 * time.Second
				tries := func() (n int, past time.Duration) {
					mu.Lock()
					defer mu.Unlock()
					for _, a := range at {
						if a.Sub(at[0]) < window {
							n++
						}
					}
					if len(at) > 0 {
						past = at[len(at)-1].Sub(at[0])
					}
					return n, past
				}
				b.eventually(t, func() bool { _, past := tries(); return past >= window }, "the window is over")
				n, _ := tries()
				// At most one every 80 ms, the shortest wait; how many fewer depends on the machine.
				require.LessOrEqual(t, n, 26)
			})
		})
	}
}
