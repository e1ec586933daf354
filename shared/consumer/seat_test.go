package consumer_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/shared/consumer"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
	"github.com/pillarbox/pillarbox/shared/logs"
)

func setupSingle(t *testing.T, db *database.DB) *bundle {
	b := setup(t, db)
	b.config.Mode, b.config.Lease, b.config.Workers, b.config.MaxAttempts = consumer.ModeSingle, time.Second, 4, 1
	return b
}

// leads returns the replica that does not stand by.
func leads(b *bundle, replicas ...*replica) (leader *replica) {
	b.eventually(b.t.(testingT), func() bool {
		leader = nil
		n := 0
		for _, r := range replicas {
			if s := r.Status(); !s.StandsBy && s.Paused == "" {
				leader = r
				n++
			}
		}
		return n == 1
	}, "one replica leads")
	return leader
}

// TestSingleHandsOver: of three replicas one works, one group at a time, and when it is stopped another goes on.
func TestSingleHandsOver(t *testing.T) {
	t.Parallel()
	db, _ := databasetest.Postgres(t, "loyalty") // on a SQLite file a newcomer does not wait
	b := setupSingle(t, db)
	b.config.Batch = 7
	var at, most atomic.Int64
	e := &staged{t: t, prepare: func(context.Context, consumer.Group) error {
		most.Store(max(most.Load(), at.Add(1)))
		return nil
	}, done: func(context.Context, consumer.Group) error { at.Add(-1); return nil }}
	replicas := []*replica{b.start(e), b.start(e), b.start(e)}
	const orders, versions = 10, 9
	for v := range versions {
		for o := range orders {
			b.stream.publish(event(fmt.Sprint("o", o), v+1))
		}
		if v%3 == 2 && len(replicas) > 1 {
			leader := leads(b, replicas...)
			leader.stop()
			var rest []*replica
			for _, r := range replicas {
				if r != leader {
					rest = append(rest, r)
				}
			}
			replicas = rest
		}
	}
	b.eventually(t, func() bool { return b.effects() == orders*versions }, "all effects")
	for o := range orders {
		require.Equal(t, upTo(versions), b.versions(fmt.Sprint("o", o)))
	}
	require.EqualValues(t, 1, most.Load(), "groups at a time")
	b.eventually(t, func() bool { return e.open.Load() == 0 }, "each work is ended")
	b.noLetters(t)
	last := leads(b, replicas...)
	require.Empty(t, last.Status().Note())
}

// TestFollowersPullNothing: who stands by is not paused, says so, and takes no message and no parked row.
func TestFollowersPullNothing(t *testing.T) {
	t.Parallel()
	db, _ := databasetest.Postgres(t, "loyalty")
	b := setupSingle(t, db)
	b.config.MaxAttempts = 1000
	b.exec(`INSERT INTO leases (name, holder, term, expires_at) VALUES ('loyalty', 'another', 5, $1)`,
		database.Micros(time.Now().Add(time.Hour)))
	var tried atomic.Int64
	r := b.start(consumer.Apply(func(context.Context, *database.Tx, []consumer.Event) error {
		tried.Add(1)
		return nil
	}))
	b.store("a", 1, 1, time.Hour, time.Now())
	b.exec(`UPDATE parked SET state = 'parked', attempts = 1`)
	b.stream.publish(event("b", 1))
	b.eventually(t, func() bool { return r.Status().Parked == 1 }, "it looks at what is parked")
	require.Never(t, func() bool { return tried.Load() > 0 || r.sub.handed.Load() > 0 }, 200*time.Millisecond, 10*time.Millisecond)
	status := r.Status()
	require.True(t, status.StandsBy)
	require.Empty(t, status.Paused)
	require.Contains(t, status.Note(), "stands by")
	b.exec(`UPDATE leases SET expires_at = 0`)
	b.eventually(t, func() bool { return tried.Load() == 2 }, "both taken by the new leader")
}

// TestALeaderOfThePastIsRefused: another replica begins to lead while a group is prepared. The group is not
// committed, no attempt is counted and its events take effect once, later.
func TestALeaderOfThePastIsRefused(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		b := setupSingle(t, db)
		var first atomic.Bool
		e := &staged{t: t}
		e.prepare = func(context.Context, consumer.Group) error {
			if first.CompareAndSwap(false, true) {
				b.exec(`UPDATE leases SET holder = 'another', term = term + 1, expires_at = ` + db.Dialect().Now() + ` + 300000`)
			}
			return nil
		}
		registry := prometheus.NewRegistry()
		sub := b.stream.subscriber(100)
		c, err := consumer.New(b.config, consumer.Deps{DB: db, Subscriber: sub, Effect: e, Log: logs.Discard(), Registry: registry})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.Run(ctx) }()
		b.stream.publish(event("a", 1), event("a", 2))
		b.eventually(t, func() bool { return b.versions("a") == "1 2" }, "effects under the next term")
		require.EqualValues(t, 1, e.discards.Load(), "what was prepared under the past term")
		require.Equal(t, 1.0, conflicts(t, registry))
		require.Equal(t, 3, b.count(`SELECT term FROM leases`))
		require.Empty(t, c.Status().Paused)
		b.noLetters(t)
		cancel()
		require.NoError(t, <-ended)
	})
}

func conflicts(t *testing.T, registry *prometheus.Registry) float64 {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, family := range families {
		if family.GetName() == "consumer_conflicts_total" {
			return family.GetMetric()[0].GetCounter().GetValue()
		}
	}
	require.Fail(t, "no such metric")
	return 0
}
