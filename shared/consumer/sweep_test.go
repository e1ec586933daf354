package consumer_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/pillarbox/pillarbox/shared/consumer"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
	"github.com/stretchr/testify/require"
)

func (b *bundle) lane(order string, version int) {
	b.exec(`INSERT INTO lanes (order_id, version) VALUES ($1, $2)`, order, version)
}

// TestSweepTakesUpWhatACrashLeft: rows whose turn has come run without any message.
func TestSweepTakesUpWhatACrashLeft(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		b.lane("a", 1) // the crash came between the commit of version 1 and the group of 2 and 3
		b.store("a", 2, 0, time.Minute, time.Now())
		b.store("a", 3, 0, time.Minute, time.Now())
		b.lane("b", 2) // and here between the commit of version 2 and the end of its work
		b.store("b", 2, 0, time.Minute, time.Now())
		e := &staged{t: t}
		b.start(e)
		b.eventually(t, func() bool { return b.versions("a") == "2 3" }, "leftovers")
		b.eventually(t, func() bool { _, ok := e.doneEvents.Load(eventID("b", 2)); return ok }, "unfinished work finished")
		b.eventually(t, func() bool { return b.count(`SELECT count(*) FROM parked`) == 0 }, "no row left")
		require.Empty(t, b.versions("b"), "not done twice")
	})
}

// TestClaimOfACrashedReplicaEnds: a row that somebody claimed and left is taken when the claim is over.
func TestClaimOfACrashedReplicaEnds(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		b.lane("a", 0)
		b.lane("b", 0)
		for _, order := range []string{"a", "b"} {
			b.store(order, 1, 0, time.Minute, time.Now())
		}
		b.exec(`UPDATE parked SET state = 'parked', attempts = 1`)
		b.exec(`UPDATE parked SET claimed_until = $1 WHERE order_id = 'a'`, database.Micros(time.Now().Add(300*time.Millisecond)))
		b.exec(`UPDATE parked SET claimed_until = $1 WHERE order_id = 'b'`, database.Micros(time.Now().Add(time.Hour)))
		b.start(consumer.Apply(record))
		b.eventually(t, func() bool { return b.versions("a") == "1" }, "claim over")
		require.Empty(t, b.versions("b"), "claimed by another")
	})
}

// TestBaseline: an order from before the consumer's first start begins with the first event that
// comes, once the ack floor proves that nothing earlier will.
func TestBaseline(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		old, young := time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
		b.stream.floor.Store(10)
		b.store("proved", 5, 9, time.Minute, old)
		b.store("proved", 6, 10, time.Minute, old)
		b.store("under-way", 5, 11, time.Minute, old)
		b.store("fresh", 5, 9, 0, old)
		b.store("young", 5, 9, time.Minute, young)
		b.store("no-sequence", 5, 0, time.Minute, old)
		b.lane("begun", 2)
		b.store("begun", 5, 9, time.Minute, old)
		b.store("handed-on", 5, 9, 30*time.Second, old)
		b.exec(`UPDATE parked SET headers = '{"Pillarbox-Route":["loyalty"]}' WHERE order_id = 'handed-on'`)
		b.start(consumer.Apply(record))
		b.eventually(t, func() bool { return b.versions("proved") == "5 6" }, "begins with version 5")
		for _, order := range []string{"under-way", "fresh", "young", "no-sequence", "begun", "handed-on"} {
			require.Empty(t, b.versions(order), order)
		}
		b.stream.floor.Store(11)
		b.eventually(t, func() bool { return b.versions("under-way") == "5" }, "proved later")
		b.exec(`UPDATE parked SET created_at = created_at - 60000000 WHERE order_id = 'handed-on'`)
		b.eventually(t, func() bool { return b.versions("handed-on") == "5" }, "late, since the floor proves less")
		require.Equal(t, 4, b.parked("waiting"))
	})
}

// TestStartIsRememberedOnce: a restart does not move the line between old and new orders.
func TestStartIsRememberedOnce(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		b.exec(`INSERT INTO consumer_state (name, started_at) VALUES ('loyalty', 42)`)
		r := b.start(consumer.Apply(record))
		b.stream.publish(event("a", 1))
		b.eventually(t, func() bool { return b.effects() == 1 }, "runs")
		r.stop()
		require.Equal(t, 42, b.count(`SELECT started_at FROM consumer_state WHERE name = 'loyalty'`))
	})
}

func TestGapIsReported(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		b.stream.floor.Store(100)
		b.lane("lost", 1)
		b.store("lost", 3, 7, time.Minute, time.Now())
		b.store("lost", 4, 8, time.Minute, time.Now())
		b.lane("held", 1) // its predecessor is here: no gap
		b.store("held", 2, 5, time.Minute, time.Now())
		b.exec(`UPDATE parked SET state = 'dead' WHERE event_id = $1`, eventID("held", 2))
		b.store("held", 3, 6, time.Minute, time.Now())
		b.lane("under-way", 1)
		b.store("under-way", 3, 101, time.Minute, time.Now())
		for _, order := range []string{"handed-on", "handed-on-long-ago"} { // the predecessor may still be with the consumer before
			b.lane(order, 1)
			b.store(order, 3, 9, 30*time.Second, time.Now())
		}
		b.exec(`UPDATE parked SET headers = '{"Pillarbox-Route":["loyalty"]}' WHERE order_id LIKE 'handed-on%'`)
		b.exec(`UPDATE parked SET created_at = created_at - 60000000 WHERE order_id = 'handed-on-long-ago'`)
		r := b.start(consumer.Apply(record))
		b.eventually(t, func() bool { return r.Status().GapOrders == 2 }, "two gaps")
		b.stream.publish(event("handed-on-long-ago", 2))
		b.eventually(t, func() bool { return r.Status().GapOrders == 1 }, "one gap")
		b.eventually(t, func() bool { return r.Status().Waiting == 5 }, "its rows are gone from the count")
		require.Equal(t, 1, r.Status().Dead)
		require.Greater(t, r.Status().OldestWaiting, 50*time.Second)
		b.stream.publish(event("lost", 2)) // found again
		b.eventually(t, func() bool { return b.versions("lost") == "2 3 4" }, "goes on")
		b.eventually(t, func() bool { return r.Status().GapOrders == 0 }, "no gap any more")
	})
}

// TestFullTablePausesAndLosesNothing: at the limit messages stay with the broker, and those
// that need no row still get through.
func TestFullTablePausesAndLosesNothing(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]func(*consumer.Config){
		"per order": func(c *consumer.Config) { c.ParkedPerOrder = 5 },
		"in all":    func(c *consumer.Config) { c.ParkedTotal = 5 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
				b := setup(t, db)
				limit(&b.config)
				b.config.Workers = 1
				r := b.start(consumer.Apply(record))
				for v := 20; v > 1; v-- {
					b.stream.publish(event("a", v))
				}
				b.eventually(t, func() bool { return r.sub.pauses.Load() > 0 }, "paused")
				require.LessOrEqual(t, b.parked("waiting"), 5)
				b.stream.publish(event("b", 1), event("a", 1))
				b.eventually(t, func() bool { return b.versions("a") == upTo(20) && b.versions("b") == "1" }, "all in order in the end")
				b.noLetters(t)
			})
		})
	}
}

// TestRowOfANewerReplica: a stored event that this release cannot read becomes a dead letter and holds its order.
func TestRowOfANewerReplica(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		b.lane("a", 1)
		b.store("a", 2, 0, time.Minute, time.Now())
		b.store("a", 3, 0, time.Minute, time.Now())
		b.exec(`UPDATE parked SET event = $1 WHERE version = 2`, []byte(replace(string(event("a", 2)), "order.changed.v1", "order.changed.v9")))
		b.start(&staged{t: t})
		b.eventually(t, func() bool { return b.letters() == 1 }, "dead letter")
		b.eventually(t, func() bool { return b.parked("dead") == 1 && b.parked("waiting") == 1 }, "held")
		require.Zero(t, b.effects())
	})
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	err := consumer.Config{Batch: -1, Workers: 1000, Drain: -1}.Validate()
	require.ErrorContains(t, err, "name")
	require.ErrorContains(t, err, "batch")
	require.ErrorContains(t, err, "workers")
	require.ErrorContains(t, err, "durations")
	_, err = consumer.New(consumer.Config{Name: "x"}, consumer.Deps{})
	require.Error(t, err)
}

func TestClassify(t *testing.T) {
	t.Parallel()
	require.Equal(t, consumer.Transient, consumer.Classify(errBroken))
	require.Equal(t, consumer.Outage, consumer.Classify(fmt.Errorf("send: %w", consumer.AsOutage(errBroken))))
	require.Equal(t, consumer.Permanent, consumer.Classify(consumer.AsPermanent(errBroken)))
	require.Equal(t, consumer.Outage, consumer.Classify(context.DeadlineExceeded))
	require.ErrorIs(t, consumer.AsOutage(errBroken), errBroken)
	require.NoError(t, consumer.AsPermanent(nil))
}
