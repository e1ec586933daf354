package consumer_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pillarbox/pillarbox/shared/consumer"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
	"github.com/stretchr/testify/require"
)

func replace(s, old, with string) string { return strings.Replace(s, old, with, 1) }

func TestOutagePausesAndBurnsNothing(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		b.config.MaxAttempts = 1
		var down atomic.Bool
		down.Store(true)
		var probes atomic.Int64
		fail := func() error {
			if down.Load() {
				return consumer.AsOutage(errBroken)
			}
			return nil
		}
		e := &staged{t: t,
			prepare: func(context.Context, consumer.Group) error { return fail() },
			probe:   func(context.Context) error { probes.Add(1); return fail() },
		}
		r := b.start(e)
		b.stream.publish(event("a", 1), event("b", 1), event("a", 2))
		b.eventually(t, func() bool { return probes.Load() > 2 }, "probed with backoff")
		require.Contains(t, r.Status().Paused, "broken")
		require.EqualValues(t, 1, r.sub.pauses.Load(), "paused once")
		require.Zero(t, b.count(`SELECT count(*) FROM parked WHERE attempts > 0`))
		b.noLetters(t)
		down.Store(false)
		b.eventually(t, func() bool { return b.versions("a") == "1 2" && b.versions("b") == "1" }, "goes on")
		require.Empty(t, r.Status().Paused)
		b.noLetters(t)
	})
}

// TestUnfinishedWorkComesBack: when Done fails after the commit the effect is not repeated, but its
// events are shown as duplicates until Done succeeds, also those whose messages were acknowledged long before.
func TestUnfinishedWorkComesBack(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		var down atomic.Bool
		e := &staged{t: t, done: func(context.Context, consumer.Group) error {
			if down.Load() {
				return errBroken
			}
			return nil
		}}
		b.start(e)
		b.stream.publish(event("a", 3), event("a", 2))
		b.eventually(t, func() bool { return b.parked("waiting") == 2 }, "waiting")
		down.Store(true)
		b.stream.publish(event("a", 1))
		b.eventually(t, func() bool { return b.versions("a") == "1 2 3" }, "committed")
		b.eventually(t, func() bool { return e.dones.Load() > 1 }, "Done tried again")
		require.Equal(t, 2, b.count(`SELECT count(*) FROM parked`), "rows remember the unfinished work")
		down.Store(false)
		for v := range 3 {
			b.eventually(t, func() bool { _, ok := e.doneEvents.Load(eventID("a", v+1)); return ok }, fmt.Sprint("finished ", v+1))
		}
		b.eventually(t, func() bool { return b.count(`SELECT count(*) FROM parked`) == 0 }, "no row left")
		require.Equal(t, "1 2 3", b.versions("a"))
		b.noLetters(t)
	})
}

// TestUnknownCommit: neither Done nor Discard is called, nothing is burnt, and the redelivery decides.
func TestUnknownCommit(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		b.config.MaxAttempts = 1
		var tries atomic.Int64
		e := &staged{t: t, apply: func(context.Context, consumer.Group) error {
			if tries.Add(1) == 1 {
				return fmt.Errorf("apply: %w", database.ErrCommitUnknown)
			}
			return nil
		}}
		b.start(e)
		b.stream.publish(event("a", 1))
		b.eventually(t, func() bool { return b.versions("a") == "1" && e.dones.Load() == 1 }, "done once")
		require.Zero(t, e.discards.Load())
		require.EqualValues(t, 1, e.open.Load(), "the first work was left alone")
		b.noLetters(t)
	})
}

// TestDatabaseLost: sessions are ended under the consumer's feet; every event still takes effect once.
func TestDatabaseLost(t *testing.T) {
	t.Parallel()
	db, _ := databasetest.Postgres(t, "loyalty")
	b := setup(t, db)
	b.config.MaxAttempts = 1
	b.start(consumer.Apply(record))
	ctx, cancel := context.WithCancel(t.Context())
	killed := make(chan struct{})
	go func() {
		defer close(killed)
		for pause := 20 * time.Millisecond; ctx.Err() == nil; pause += pause / 10 { // a slow machine needs longer between two
			// One of the sessions ends may be the one that asks.
			_, _ = db.Read().ExecContext(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
				WHERE datname = current_database() AND pid <> pg_backend_pid()`)
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
		}
	}()
	const orders = 40
	for round := range 5 {
		for o := range orders {
			b.stream.publish(event(fmt.Sprint("order-", o), round+1))
		}
	}
	b.eventually(t, func() bool { acked, _, _ := b.stream.counts(); return acked > orders }, "some acknowledged")
	cancel()
	<-killed
	b.eventually(t, func() bool { acked, _, _ := b.stream.counts(); return acked >= 5*orders }, "all acknowledged")
	for o := range orders {
		b.eventually(t, func() bool { return b.versions(fmt.Sprint("order-", o)) == upTo(5) }, "all in order")
	}
	b.noLetters(t)
}

// TestLaneHeldByAnother: a lock that does not come in time is no failure of the event.
func TestLaneHeldByAnother(t *testing.T) {
	t.Parallel()
	db, _ := databasetest.Postgres(t, "loyalty")
	b := setup(t, db)
	b.config.MaxAttempts = 1
	b.exec(`INSERT INTO lanes (order_id, version) VALUES ('a', 0)`)
	r := b.start(&staged{t: t})
	require.NoError(t, db.Tx(t.Context(), func(ctx context.Context, tx *database.Tx) error {
		_, err := tx.ExecContext(ctx, `SELECT version FROM lanes WHERE order_id = 'a' FOR UPDATE`)
		b.stream.publish(event("a", 1), event("b", 1))
		<-time.After(2 * time.Second) // twice the lock timeout
		return err
	}))
	b.eventually(t, func() bool { return b.versions("a") == "1" && b.versions("b") == "1" }, "done when the lane is free")
	b.noLetters(t)
	require.Zero(t, r.sub.pauses.Load())
}

// TestDrain: a stop lets the group under way finish; what has not begun goes back.
func TestDrain(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		b.config.Workers, b.config.Batch = 1, 1
		begun, let := make(chan struct{}, 10), make(chan struct{})
		r := b.start(&staged{t: t, prepare: func(context.Context, consumer.Group) error {
			begun <- struct{}{}
			<-let
			return nil
		}})
		b.stream.publish(event("a", 1), event("b", 1), event("c", 1))
		<-begun
		stopped := make(chan struct{})
		go func() { defer close(stopped); r.stop() }()
		b.eventually(t, func() bool { _, nacked, _ := b.stream.counts(); return nacked == 2 }, "the others went back")
		close(let)
		<-stopped
		acked, _, pending := b.stream.counts()
		require.Equal(t, 1, acked)
		require.Equal(t, 2, pending)
		require.Equal(t, 1, b.effects())
		require.Zero(t, b.count(`SELECT count(*) FROM parked`))
	})
}

// TestStopBeforeTheDatabaseIsThere: a consumer that never began stops at once and leaves nothing running.
func TestStopBeforeTheDatabaseIsThere(t *testing.T) {
	t.Parallel()
	db, err := database.Open("postgres://nobody@127.0.0.1:1/none", database.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	b := setup(t, db)
	r := b.start(consumer.Apply(record))
	require.Equal(t, "not started", r.Status().Paused)
	r.stop()
	_, err = r.sub.Subscribe(t.Context(), "")
	require.ErrorIs(t, err, errClosed, "the subscriber is closed in any case")
}

// TestDrainDeadline: a group that does not finish in time is given back and counts as no attempt.
func TestDrainDeadline(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		b.config.Drain = 50 * time.Millisecond
		b.config.MaxAttempts = 1
		begun := make(chan struct{}, 10)
		r := b.start(&staged{t: t, prepare: func(ctx context.Context, _ consumer.Group) error {
			begun <- struct{}{}
			<-ctx.Done()
			return ctx.Err()
		}})
		b.stream.publish(event("a", 1))
		<-begun
		r.stop()
		acked, _, pending := b.stream.counts()
		require.Zero(t, acked)
		require.Equal(t, 1, pending)
		require.Zero(t, b.count(`SELECT count(*) FROM parked`))
		b.noLetters(t)
	})
}

// TestSlowEffectIsOneFailedAttempt: the group's time-out is the event's failure and no outage.
func TestSlowEffectIsOneFailedAttempt(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		b.config.Timeout = 300 * time.Millisecond
		var slow atomic.Int64
		r := b.start(&staged{t: t, prepare: func(ctx context.Context, g consumer.Group) error {
			if has(g.Due, eventID("a", 1)) && slow.Add(1) < 2 {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}})
		b.stream.publish(event("a", 1))
		b.eventually(t, func() bool { return b.versions("a") == "1" }, "done at the second attempt")
		require.Zero(t, r.sub.pauses.Load())
	})
}
