package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/consumer"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
	"github.com/pillarbox/pillarbox/shared/events"
	"github.com/pillarbox/pillarbox/shared/logs"
	"github.com/pillarbox/pillarbox/shared/retention"
	"github.com/stretchr/testify/require"
)

const (
	keep = 100 * time.Hour
	old  = 10 * keep
)

// keeping is a consumer's that knows all that it has to: the stream is empty.
func keeping() consumer.Keeping {
	return consumer.Keeping{
		Handled:     keep,
		Horizon:     func() (time.Duration, bool) { return keep - consumer.KeepMargin, true },
		FirstStored: func(context.Context) (time.Time, error) { return time.Time{}, nil },
	}
}

// clean runs a cleaner until the test ends or stop.
func (b *bundle) clean(c *consumer.Consumer, k consumer.Keeping) (stop func()) {
	b.t.Helper()
	cleaner, err := retention.New(
		retention.Config{Every: 5 * time.Millisecond, Bite: 7, Pause: time.Microsecond, Poll: 10 * time.Millisecond},
		retention.Deps{DB: b.db, Log: logs.New(b.t.Output(), "text", slog.LevelWarn)}, c.Retention(k)...)
	require.NoError(b.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); cleaner.Run(ctx) }()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	b.t.Cleanup(stop)
	return stop
}

// age makes lanes look as if their orders had been at rest for long.
func (b *bundle) age(condition string) {
	b.exec(`UPDATE lanes SET updated_at = updated_at - $1 WHERE `+condition, old.Microseconds())
}

func (b *bundle) lanes() int { return b.count(`SELECT count(*) FROM lanes`) }

func (b *bundle) forgets(t *testing.T) time.Time {
	t.Helper()
	at, err := consumer.RemovedUpTo(t.Context(), b.db.Read(), b.config.Name)
	require.NoError(t, err)
	return at
}

// long is a line whose consumer reads replays, too.
func (l *line) startLong(t *testing.T, e consumer.Effect) *consumer.Consumer {
	t.Helper()
	sub, err := broker.NewSubscriber(l.conn, consumer.Settings{}.Subscriber(l.config.Name))
	require.NoError(t, err)
	c, err := consumer.New(l.config, consumer.Deps{DB: l.db, Subscriber: sub, Effect: e, Log: logs.Discard()})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() { cancel(); require.NoError(t, <-done) })
	return c
}

// replay publishes bodies to the consumer's own topic.
func (l *line) replay(t *testing.T, bodies ...[]byte) {
	t.Helper()
	for _, body := range bodies {
		_, err := l.conn.JS.Publish(t.Context(), events.ReplayTopic(l.config.Name), body)
		require.NoError(t, err)
	}
}

// settled waits until everything in the stream is acknowledged.
func (l *line) settled(t *testing.T) {
	t.Helper()
	l.eventually(t, func() bool {
		stream, err := l.conn.JS.Stream(t.Context(), events.StreamOrders)
		require.NoError(t, err)
		for info := range stream.ListConsumers(t.Context()).Info() {
			return info.AckFloor.Stream == stream.CachedInfo().State.LastSeq
		}
		return false
	}, "acknowledged")
}

// TestWhatIsForgottenTakesNoSecondEffect: lanes are removed, and the whole history comes again three times; new events of
// these orders take effect, and so does an old one that had been stuck before it was ever published.
func TestWhatIsForgottenTakesNoSecondEffect(t *testing.T) {
	t.Parallel()
	for kind, effect := range map[string]func(t *testing.T) consumer.Effect{
		"in transaction": func(*testing.T) consumer.Effect { return consumer.Apply(record) },
		"in steps":       func(t *testing.T) consumer.Effect { return &staged{t: t} },
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
				l := setupLine(t, db)
				c := l.startLong(t, effect(t))
				placed := time.Now().Add(-old)
				const orders, versions = 20, 3
				var history [][]byte
				for v := range versions {
					for o := range orders {
						history = append(history, eventAt(fmt.Sprint("order-", o), v+1, placed, placed.Add(time.Minute)))
					}
				}
				l.publish(history...)
				l.eventually(t, func() bool { return l.effects() == len(history) }, "effects")
				l.settled(t)
				require.Zero(t, l.forgets(t))
				l.age(`true`)
				stream, err := l.conn.JS.Stream(t.Context(), events.StreamOrders)
				require.NoError(t, err)
				require.NoError(t, stream.Purge(t.Context()))
				k := keeping()
				k.FirstStored = consumer.FirstStored(l.conn)
				stop := l.clean(c, k)
				l.eventually(t, func() bool { return l.lanes() == 0 }, "lanes removed")
				require.WithinRange(t, l.forgets(t), time.Now().Add(-keep), time.Now().Add(-keep+2*time.Hour))
				for range 3 {
					l.replay(t, history...)
					l.settled(t)
				}
				stop()
				require.Equal(t, len(history), l.effects())
				require.Zero(t, l.count(`SELECT count(*) FROM parked`))

				l.publish(
					eventAt("order-0", versions+2, placed, time.Now()), eventAt("order-0", versions+1, placed, time.Now()),
					eventAt("stuck", 1, placed, placed), eventAt("new", 1, time.Now(), time.Now()),
				)
				l.eventually(t, func() bool { return l.effects() == len(history)+4 && l.count(`SELECT count(*) FROM parked`) == 0 }, "new ones")
				require.Equal(t, upTo(versions+2), l.versions("order-0"))
				l.replay(t, history...)
				l.settled(t)
				require.Equal(t, len(history)+4, l.effects())
				l.noLetters(t)
			})
		})
	}
}

// TestALaneStaysWhileItMayBeNeeded names each reason.
func TestALaneStaysWhileItMayBeNeeded(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		r := b.start(consumer.Apply(record))
		for _, order := range []string{"rest", "young", "parked", "dead", "skipped", "held"} {
			b.stream.publish(event(order, 1))
		}
		b.eventually(t, func() bool { return b.lanes() == 6 }, "lanes")
		b.age(`order_id <> 'young'`)
		b.store("parked", 3, 9, 0, time.Now())
		for n, order := range []string{"dead", "skipped"} {
			b.exec(`INSERT INTO dead_letters (id, order_id, body, reason, skipped) VALUES ($1, $1, $2, 'r', $3)`, order, []byte{}, n)
		}
		k := keeping()
		k.Holds = []string{`lanes.order_id = 'held'`}

		now := time.Now()
		upTo := func(change func(k *consumer.Keeping)) (time.Time, error) {
			with := k
			with.Own = []retention.Rule{{Name: "own", Bite: retention.Rows("lanes", "order_id", "updated_at", "")}}
			change(&with)
			rules := r.Retention(with)
			own, err := rules[0].UpTo(t.Context(), now)
			lanes, _ := rules[1].UpTo(t.Context(), now)
			require.Equal(t, own, lanes, "the service's own rows go by the same rule")
			return lanes, err
		}
		_, err := upTo(func(k *consumer.Keeping) { k.Horizon = func() (time.Duration, bool) { return 0, false } })
		require.ErrorIs(t, err, retention.ErrNotNow)
		_, err = upTo(func(k *consumer.Keeping) { k.FirstStored = disconnected })
		require.ErrorIs(t, err, retention.ErrNotNow)
		_, err = upTo(func(k *consumer.Keeping) { k.Horizon = func() (time.Duration, bool) { return keep, true } })
		require.ErrorIs(t, err, consumer.ErrKeepTooShort)
		require.ErrorContains(t, err, "PILLARBOX_STORE_HORIZON")
		at, err := upTo(func(k *consumer.Keeping) {
			k.FirstStored = func(context.Context) (time.Time, error) { return now.Add(-old), nil }
		})
		require.NoError(t, err)
		require.True(t, at.Equal(now.Add(-old)), "back from the oldest in the stream")

		b.clean(r.Consumer, k)
		b.eventually(t, func() bool { return b.lanes() == 5 }, "one removed")
		b.eventually(t, func() bool { return b.count(`SELECT count(*) FROM dead_letters WHERE settled_at > 0`) == 1 }, "another round")
		require.Equal(t, []string{"dead", "held", "parked", "skipped", "young"}, b.text(`SELECT order_id FROM lanes ORDER BY order_id`))
	})
}

func disconnected(context.Context) (time.Time, error) { return time.Time{}, broker.ErrDisconnected }

// TestNothingIsForgottenDuringAReplay: what came in the time of an absence may be older than what was forgotten before.
func TestNothingIsForgottenDuringAReplay(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		p := &past{}
		b.past, b.config.From = p, consumer.FromStart
		r := b.start(consumer.Apply(record))
		b.stream.publish(event("a", 1))
		b.eventually(t, func() bool { return b.lanes() == 1 }, "lane")
		b.age(`true`)
		lanes := r.Retention(keeping())[0]
		_, err := lanes.UpTo(t.Context(), time.Now())
		require.ErrorIs(t, err, retention.ErrNotNow)
		p.complete.Store(true)
		b.clean(r.Consumer, keeping())
		b.eventually(t, func() bool { return b.lanes() == 0 }, "removed")
	})
}

// TestAGapStaysAGap though the time passes up to which orders are forgotten: its event came before that.
func TestAGapStaysAGap(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		now := time.Now()
		b.exec(`INSERT INTO consumer_state (name, started_at, removed_up_to) VALUES ($1, $2, $3)`,
			b.config.Name, database.Micros(now.Add(-2*old)), database.Micros(now.Add(-keep)))
		b.store("gap", 2, 5, time.Minute, now.Add(-old))
		b.store("known", 7, 6, time.Minute, now.Add(-old))
		b.exec(`UPDATE parked SET forgotten = 1 WHERE order_id = 'known'`)
		b.stream.floor.Store(10)
		r := b.start(consumer.Apply(record))
		b.eventually(t, func() bool { return b.versions("known") == "7" }, "an order that was forgotten goes on")
		b.eventually(t, func() bool { return r.Status().GapOrders == 1 }, "the other is missed")
		require.Empty(t, b.versions("gap"))
	})
}

func TestOldLettersActionsAndRedrivesGo(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		r := b.start(consumer.Apply(record))
		b.eventually(t, func() bool { return b.count(`SELECT count(*) FROM consumer_state`) == 1 }, "begun")
		k := keeping()
		k.Letters, k.Actions = keep, keep
		ago := database.Micros(time.Now().Add(-old))
		for n := range 20 {
			b.exec(`INSERT INTO dead_letters (id, body, reason, created_at, skipped, settled_at) VALUES ($1, $2, 'r', $3, $4, $5)`,
				fmt.Sprint(n), []byte{}, ago, n%2, []int64{0, ago, 0, 0}[n%4])
			b.exec(`INSERT INTO operator_actions (who, action, target, reason, result, at) VALUES ('w', 'a', 't', 'r', 'r', $1)`, []int64{ago, database.Micros(time.Now())}[n%2])
		}
		for n, state := range []string{"done", "running", "stopped"} {
			b.exec(`INSERT INTO redrives (id, state, who, reason, rate, updated_at) VALUES ($1, $2, 'w', 'r', 1, $3)`, state, state, ago+int64(n/2)*old.Microseconds())
			for p := range 20 {
				b.exec(`INSERT INTO redrive_items (redrive_id, position, letter_id, order_id, version) VALUES ($1, $2, 'l', 'o', 1)`, state, p)
			}
		}
		b.exec(`UPDATE redrive_items SET state = 'done'`)
		b.clean(r.Consumer, k)
		b.eventually(t, func() bool { return b.letters() == 15 && b.count(`SELECT count(*) FROM operator_actions`) == 11 }, "removed")
		require.Equal(t, 10, b.count(`SELECT count(*) FROM dead_letters WHERE skipped = 0`), "a person's")
		b.eventually(t, func() bool { return b.count(`SELECT count(*) FROM dead_letters WHERE settled_at > $1`, ago) == 5 }, "dated when first seen")
		b.eventually(t, func() bool { return b.count(`SELECT count(*) FROM redrives`) == 2 }, "the one that is over and old")
		require.Equal(t, 40, b.count(`SELECT count(*) FROM redrive_items`))
	})
}

// TestTablesComeBackToTheirSize: cycle after cycle of orders that come to rest.
func TestTablesComeBackToTheirSize(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		r := b.start(consumer.Apply(record))
		b.clean(r.Consumer, keeping())
		const cycles, orders = 6, 40
		for cycle := range cycles {
			for v := range 2 {
				for o := range orders {
					b.stream.publish(event(fmt.Sprintf("c%d-%d", cycle, o), v+1))
				}
			}
			b.eventually(t, func() bool { return b.effects() == 2*orders*(cycle+1) }, "effects")
			b.age(`true`)
			b.eventually(t, func() bool { return b.lanes() == 0 && b.count(`SELECT count(*) FROM parked`) == 0 }, "as at the beginning")
		}
		require.Equal(t, 1, b.count(`SELECT count(*) FROM consumer_state`))
		b.noLetters(t)
	})
}

// TestCleaningUnderLoad: two replicas work, two clean; nothing is lost, doubled or out of order.
func TestCleaningUnderLoad(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		e := &staged{t: t}
		one, two := b.start(e), b.start(e)
		const rest, orders, versions = 1000, 60, 6
		for first := 0; first < rest; first += 100 {
			args := make([]any, 0, 300)
			for n := range 100 {
				args = append(args, fmt.Sprint("rest-", first+n), 3, database.Micros(time.Now().Add(-old)))
			}
			b.exec(`INSERT INTO lanes (order_id, version, updated_at) VALUES `+database.Values(100, 3), args...)
		}
		b.clean(one.Consumer, keeping())
		b.clean(two.Consumer, keeping())
		for v := range versions {
			for o := range orders {
				b.stream.publish(event(fmt.Sprint("order-", o), v+1), event(fmt.Sprint("order-", (o+7)%orders), v+1))
			}
		}
		b.eventually(t, func() bool { return b.effects() == orders*versions && b.lanes() == orders }, "all effects, and only old lanes gone")
		for o := range orders {
			require.Equal(t, upTo(versions), b.versions(fmt.Sprint("order-", o)))
		}
		b.eventually(t, func() bool { return b.count(`SELECT count(*) FROM parked`) == 0 }, "nothing left")
		b.noLetters(t)
	})
}

// TestNobodyFillsInWhatIsForgotten: the effect was there long ago.
func TestNobodyFillsInWhatIsForgotten(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		now := time.Now()
		b.exec(`INSERT INTO consumer_state (name, started_at, removed_up_to) VALUES ($1, $2, $3)`,
			b.config.Name, database.Micros(now.Add(-2*old)), database.Micros(now.Add(-keep)))
		b.store("o", 3, 5, 0, now.Add(-old))
		operator := consumer.NewOperator(b.config.Name, true, db, logs.Discard())
		at, err := operator.RemovedUpTo(t.Context())
		require.NoError(t, err)
		require.WithinDuration(t, now.Add(-keep), at, time.Millisecond)
		who := consumer.Actor{Who: "ada", Reason: "missing"}
		require.ErrorIs(t, operator.Fill(t.Context(), who, "o", eventAt("o", 2, now.Add(-old), now.Add(-old))), consumer.ErrRefused)
		require.NoError(t, operator.Fill(t.Context(), who, "o", eventAt("o", 2, now.Add(-old), now)))
	})
}

// TestLettersThatNobodySettlesAreBounded: none goes by itself, so the consumer waits for a person.
func TestLettersThatNobodySettlesAreBounded(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		b.config.Letters, b.config.MaxAttempts = 3, 1
		r := b.start(&staged{t: t, prepare: func(_ context.Context, g consumer.Group) error {
			for _, e := range g.Due {
				if e.Subject != "good" {
					return errPoison
				}
			}
			return nil
		}})
		for n := range 2 {
			b.stream.publish(event(fmt.Sprint("bad-", n), 1), []byte(fmt.Sprint("no event ", n)))
		}
		b.eventually(t, func() bool { return b.letters() == 3 && strings.Contains(r.Status().Paused, "3 dead letters") }, "paused")
		b.exec(`DELETE FROM parked`)
		b.exec(`DELETE FROM dead_letters`)
		b.stream.publish(event("good", 1))
		b.eventually(t, func() bool { return b.effects() == 1 && b.letters() == 1 }, "goes on")
	})
}

var errPoison = consumer.AsPermanent(errors.New("poison"))
