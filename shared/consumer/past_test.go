package consumer_test

import (
	"encoding/json"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pillarbox/pillarbox/shared/consumer"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
	"github.com/pillarbox/pillarbox/shared/events"
	"github.com/pillarbox/pillarbox/shared/logs"
	"github.com/stretchr/testify/require"
)

// past is a store that is asked for history.
type past struct {
	asked    atomic.Pointer[time.Time]
	complete atomic.Bool
}

func (p *past) Ask(from time.Time) { p.asked.Store(&from) }
func (p *past) Complete() bool     { return p.complete.Load() }

// eventAt is an event that happened at a time, of an order placed at another.
func eventAt(order string, version int, placed, at time.Time) []byte {
	e, err := events.Decode(eventPlaced(order, version, placed))
	if err != nil {
		panic(err)
	}
	var body events.Order
	if err := json.Unmarshal(e.Data, &body); err != nil {
		panic(err)
	}
	e.Time = at
	raw, err := e.Encode()
	if err != nil {
		panic(err)
	}
	return raw
}

func TestEventsOfBeforeTheBeginningTakeNoEffect(t *testing.T) {
	t.Parallel()
	from := time.Date(2026, 2, 3, 4, 5, 6, 789_000, time.UTC)
	for name, ordered := range map[string]bool{"ordered": true, "unordered": false} {
		for kind, effect := range map[string]func(t *testing.T) consumer.Effect{
			"in transaction": func(*testing.T) consumer.Effect { return consumer.Apply(record) },
			"in steps":       func(t *testing.T) consumer.Effect { return &staged{t: t} },
		} {
			t.Run(name+" "+kind, func(t *testing.T) {
				t.Parallel()
				databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
					b := setup(t, db)
					b.config.Ordered = ordered
					b.config.From = consumer.From(from.Format(time.RFC3339Nano))
					p := &past{}
					p.complete.Store(true)
					b.past = p
					b.start(effect(t))
					placed := from.Add(-time.Hour)
					all := [][]byte{
						eventAt("a", 4, placed, from.Add(time.Minute)),
						eventAt("a", 1, placed, placed),
						eventAt("a", 3, placed, from), // the moment itself belongs to it
						eventAt("a", 2, placed, from.Add(-time.Microsecond)),
						eventAt("b", 2, placed, placed),
						eventAt("b", 1, placed, placed),
						eventAt("b", 1, placed, placed), // again
					}
					b.stream.publish(all...)
					b.eventually(t, func() bool { acked, _, _ := b.stream.counts(); return acked == len(all) }, "acknowledged")
					b.eventually(t, func() bool { return b.effects() == 2 && b.count(`SELECT count(*) FROM parked`) == 0 }, "effects")
					require.ElementsMatch(t, []string{"a-3", "a-4"}, b.text(`SELECT event_id FROM ledger`))
					require.True(t, from.Equal(*p.asked.Load()))
					if ordered {
						require.Equal(t, "3 4", b.versions("a"))
						require.Equal(t, []string{"a 4", "b 2"}, b.text(`SELECT order_id || ' ' || version FROM lanes ORDER BY order_id`))
					}
				})
			})
		}
	}
}

// The first start decides, for ever and for every replica.
func TestTheFirstStartDecidesTheBeginning(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		b.config.From = consumer.FromNow
		p := &past{}
		p.complete.Store(true)
		b.past = p
		r := b.start(consumer.Apply(record))
		b.stream.publish(eventAt("a", 1, time.Now(), time.Now().Add(-time.Hour)), eventAt("b", 1, time.Now(), time.Now().Add(time.Hour)))
		b.eventually(t, func() bool { acked, _, _ := b.stream.counts(); return acked == 2 }, "acknowledged")
		r.stop()
		first := *p.asked.Load()
		require.WithinDuration(t, time.Now(), first, time.Minute)
		b.config.From = consumer.FromStart
		b.start(consumer.Apply(record))
		b.stream.publish(eventAt("c", 1, time.Now(), time.Now().Add(-time.Hour)), eventAt("d", 1, time.Now(), time.Now().Add(time.Hour)))
		b.eventually(t, func() bool { acked, _, _ := b.stream.counts(); return acked == 4 }, "acknowledged")
		require.Equal(t, []string{"b-1", "d-1"}, b.text(`SELECT event_id FROM ledger ORDER BY event_id`))
		require.True(t, first.Equal(*p.asked.Load()))
	})
}

// A consumer without a choice, and one that started before there was any, asks for nothing and takes all.
func TestWithoutFromNothingIsAsked(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		b.exec(`INSERT INTO consumer_state (name, started_at) VALUES ('loyalty', 1)`)
		b.config.From = consumer.FromNow
		p := &past{}
		b.past = p
		b.start(consumer.Apply(record))
		b.stream.publish(eventAt("a", 1, time.Now(), time.Now().Add(-time.Hour)))
		b.eventually(t, func() bool { return b.effects() == 1 }, "effect")
		require.Nil(t, p.asked.Load())
	})
}

// What waits for older events does not count against the limits: they come behind it.
func TestALimitCannotHoldUpThePast(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		b.config.From = consumer.FromStart
		b.config.ParkedTotal, b.config.ParkedPerOrder = 3, 2
		p := &past{}
		b.past = p
		r := b.start(consumer.Apply(record))
		const orders = 40
		for o := range orders { // live events come first
			b.stream.publish(event(fmt.Sprintf("o%d", o), 3), event(fmt.Sprintf("o%d", o), 2))
		}
		b.eventually(t, func() bool { return b.parked("waiting") == 2*orders }, "all waiting")
		for o := range orders {
			b.stream.publish(event(fmt.Sprintf("o%d", o), 1))
		}
		b.eventually(t, func() bool { return b.effects() == 3*orders }, "all effects")
		for o := range orders {
			require.Equal(t, upTo(3), b.versions(fmt.Sprintf("o%d", o)))
		}
		require.Zero(t, r.sub.pauses.Load())

		p.complete.Store(true) // from here on the limit counts
		for o := range orders {
			b.stream.publish(event(fmt.Sprintf("p%d", o), 2))
		}
		b.eventually(t, func() bool { return r.sub.pauses.Load() > 0 }, "paused")
		for o := range orders {
			b.stream.publish(event(fmt.Sprintf("p%d", o), 1))
		}
		b.eventually(t, func() bool { return b.effects() == 5*orders }, "the rest")
	})
}

// While older versions may come no order begins with a later one, and nothing is reported as missing.
func TestNoBaselineBeforeThePastIsComplete(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		b.config.From = consumer.From(time.Now().Add(-time.Minute).Format(time.RFC3339))
		p := &past{}
		b.past = p
		b.stream.floor.Store(100)
		placed := time.Now().Add(-time.Hour)
		b.store("old", 5, 7, 20*time.Second, placed)
		b.store("young", 3, 8, 20*time.Second, time.Now())
		r := b.start(consumer.Apply(record))
		b.stream.publish(event("other", 1), eventPlaced("old", 4, placed))
		b.eventually(t, func() bool { return b.effects() == 1 && b.parked("waiting") == 3 }, "both wait")
		b.exec(`UPDATE parked SET created_at = created_at - 20000000, stream_sequence = 9 WHERE event_id = 'old-4'`)
		looks := r.sub.floors.Load()
		p.complete.Store(true)
		b.eventually(t, func() bool { return b.versions("old") == "4 5" }, "baseline at the lowest that came")
		require.Zero(t, looks, "the floor proves nothing while the past is incomplete")
		b.eventually(t, func() bool { return r.Status().GapOrders == 1 }, "an order of after the beginning has a gap")
	})
}

func TestFromNeedsSomebodyToAsk(t *testing.T) {
	t.Parallel()
	db, _ := databasetest.SQLite(t, "loyalty")
	b := setup(t, db)
	b.config.From = "yesterday"
	require.ErrorContains(t, b.config.Validate(), "from must be")
	b.config.From = consumer.FromStart
	_, err := consumer.New(b.config, consumer.Deps{DB: db, Subscriber: b.stream.subscriber(1), Effect: consumer.Apply(record), Log: logs.Discard()})
	require.ErrorContains(t, err, "past")
}
