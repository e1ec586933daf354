package consumer_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pillarbox/pillarbox/shared/consumer"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// replicas starts three consumers: on PostgreSQL each with a pool of its own.
func (b *bundle) replicas(t *testing.T, url string, effect consumer.Effect) {
	for range 3 {
		db := b.db
		if db.Dialect().Postgres() {
			own, err := database.Open(url, database.Options{Schema: "loyalty"})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, own.Close()) })
			db = own
		}
		b.startOn(db, effect)
	}
}

// TestAnyInterleaving: whatever comes how often in which sequence at three replicas
// with four workers each, every event takes effect once and those of an order in order.
func TestAnyInterleaving(t *testing.T) {
	t.Parallel()
	for name, effect := range map[string]func(t *testing.T) consumer.Effect{
		"in transaction": func(*testing.T) consumer.Effect { return consumer.Apply(record) },
		"in steps":       func(t *testing.T) consumer.Effect { return &staged{t: t} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			databasetest.EachURL(t, "loyalty", func(t *testing.T, db *database.DB, url string) {
				b := setup(t, db)
				b.config.Workers = 4
				b.config.Batch = 7 // many small groups: orders meet in several at once
				b.replicas(t, url, effect(t))
				var round atomic.Int64
				rapid.Check(t, func(r *rapid.T) { b.interleave(r, round.Add(1)) })
				b.noLetters(t)
				require.Zero(t, b.count(`SELECT count(*) FROM parked`))
			})
		})
	}
}

func (b *bundle) interleave(r *rapid.T, round int64) {
	want := map[string]int{}
	var all [][]byte
	for o := range rapid.IntRange(1, 5).Draw(r, "orders") {
		order := fmt.Sprintf("order-%d-%d", round, o)
		want[order] = rapid.IntRange(1, 12).Draw(r, "versions")
		for v := range want[order] {
			for range rapid.IntRange(1, 3).Draw(r, "copies") {
				all = append(all, event(order, v+1))
			}
		}
	}
	before, _, _ := b.stream.counts()
	b.stream.publish(rapid.Permutation(all).Draw(r, "deliveries")...)
	b.eventually(r, func() bool { acked, _, _ := b.stream.counts(); return acked == before+len(all) }, "all acknowledged")
	for order, n := range want {
		// The last group of waiting events runs after the acknowledgement.
		b.eventually(r, func() bool { return b.versions(order) == upTo(n) }, order+" in order")
	}
	b.eventually(r, func() bool { return b.count(`SELECT count(*) FROM parked`) == 0 }, "no row left")
}

func TestHotOrderInReverse(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		effect := &staged{t: t}
		b.start(effect)
		start := time.Now()
		for v := 200; v > 0; v-- {
			b.stream.publish(event("hot", v))
		}
		b.eventually(t, func() bool { return b.effects() == 200 }, "all versions")
		require.Less(t, time.Since(start), 10*time.Second)
		require.Equal(t, upTo(200), b.versions("hot"))
		b.eventually(t, func() bool { return b.count(`SELECT count(*) FROM parked`) == 0 }, "no row left")
		require.Zero(t, effect.open.Load(), "each work was ended")
	})
}

func TestCopiesInOneGroup(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		b.config.Workers = 1
		begun, let := make(chan struct{}, 2), make(chan struct{})
		var groups [][]consumer.Event
		r := b.start(&staged{t: t, prepare: func(_ context.Context, g consumer.Group) error {
			begun <- struct{}{}
			<-let
			require.Empty(t, g.Duplicates)
			groups = append(groups, g.Due)
			return nil
		}})
		b.stream.publish(event("first", 1))
		<-begun // the worker is busy
		b.stream.publish(event("a", 1), event("a", 1), event("a", 2), event("a", 1), event("a", 2))
		b.eventually(t, func() bool { return r.sub.handed.Load() == 6 }, "five wait together")
		close(let)
		b.eventually(t, func() bool { acked, _, _ := b.stream.counts(); return acked == 6 }, "all copies acknowledged")
		r.stop()
		require.Equal(t, "1 2", b.versions("a"))
		require.Len(t, groups, 2)
		require.Len(t, groups[1], 2)
	})
}

// TestDuplicatesReachTheEffect: an event that comes again after its effect is shown to the effect as a
// duplicate, so that it can finish what a crash interrupted.
func TestDuplicatesReachTheEffect(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		var seen atomic.Int64
		b.start(&staged{t: t, apply: func(_ context.Context, g consumer.Group) error {
			seen.Add(int64(len(g.Duplicates)))
			return nil
		}})
		b.stream.publish(event("a", 1))
		b.eventually(t, func() bool { return b.effects() == 1 }, "effect")
		b.stream.publish(event("a", 1))
		b.eventually(t, func() bool { return seen.Load() == 1 }, "duplicate shown")
		require.Equal(t, "1", b.versions("a"))
	})
}

func TestUnorderedTakesWhatComes(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		b.config.Ordered = false
		b.start(consumer.Apply(record))
		b.stream.publish(event("a", 3), event("b", 2), event("a", 1))
		b.eventually(t, func() bool { return b.effects() == 3 }, "effects")
		require.Zero(t, b.count(`SELECT count(*) FROM lanes`))
	})
}
