package lease_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/shared/broker/brokertest"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
	"github.com/pillarbox/pillarbox/shared/lease"
	"github.com/pillarbox/pillarbox/shared/logs"
)

// step is one part of a term, and the state in which it ran.
type step struct {
	what  string
	state lease.State
	lost  bool
}

// officer holds an office in which each part says that it ran.
type officer struct {
	*lease.Lease
	steps chan step
	fail  error // of the inauguration
}

func newOfficer(t *testing.T, c lease.Config, db *database.DB) *officer {
	t.Helper()
	l, err := lease.New(c, db, logs.Discard())
	require.NoError(t, err)
	require.Equal(t, lease.Following, l.State())
	return &officer{Lease: l, steps: make(chan step, 100)}
}

func (o *officer) office() lease.Office {
	note := func(ctx context.Context, what string) {
		o.steps <- step{what, o.State(), errors.Is(context.Cause(ctx), lease.ErrLost)}
	}
	return lease.Office{
		Inaugurate: func(ctx context.Context, _ int64) error {
			note(ctx, "inaugurate")
			return o.fail
		},
		Execute: func(ctx context.Context, _ int64) error {
			note(ctx, "execute")
			<-ctx.Done()
			return ctx.Err()
		},
		HandOver: func(ctx context.Context, _ int64) error {
			note(ctx, "hand over")
			return ctx.Err()
		},
	}
}

func (o *officer) serve(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- o.Serve(ctx, o.office()) }()
	stopped := false
	stop = func() {
		cancel()
		if !stopped {
			stopped = true
			require.NoError(t, <-ended)
		}
	}
	t.Cleanup(stop)
	return stop
}

// shown are the metrics by name, those of states by the state's.
func shown(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	values := map[string]float64{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			name := family.GetName()
			for _, label := range m.GetLabel() {
				if label.GetName() == "state" {
					name = label.GetValue()
				}
			}
			values[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return values
}

func TestATermGoesThroughItsStates(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "store", func(t *testing.T, db *database.DB) {
		o := newOfficer(t, lease.Config{Name: "relay", Holder: "a"}, db)
		registry := prometheus.NewRegistry()
		require.NoError(t, registry.Register(o))
		stop := o.serve(t)
		require.Equal(t, step{"inaugurate", lease.Inaugurating, false}, next(t, o.steps))
		require.Equal(t, step{"execute", lease.Leading, false}, next(t, o.steps))
		require.Equal(t, map[string]float64{
			"following": 0, "inaugurating": 0, "leading": 1, "handing_over": 0, "lease_terms_total": 1, "lease_lost_total": 0,
		}, shown(t, registry))
		stop()
		require.Equal(t, step{"hand over", lease.HandingOver, false}, next(t, o.steps), "its context is alive")
		require.Equal(t, lease.Following, o.State())
		require.Empty(t, o.steps)
	})
}

// A lost lease is handed over too, so that the work ends in order, but on an ended context.
func TestALostLeaseIsHandedOver(t *testing.T) {
	t.Parallel()
	db, _ := databasetest.Postgres(t, "store")
	o := newOfficer(t, lease.Config{Name: "relay", Holder: "a", TTL: 500 * time.Millisecond}, db)
	o.serve(t)
	next(t, o.steps)
	next(t, o.steps)
	_, err := db.Read().ExecContext(t.Context(), `UPDATE leases SET holder = 'b', term = term + 1, expires_at = expires_at + 3600000000`)
	require.NoError(t, err)
	require.Equal(t, step{"hand over", lease.HandingOver, true}, next(t, o.steps))
	var holder string
	var left int64
	require.NoError(t, db.Read().QueryRowContext(t.Context(), `SELECT holder, expires_at FROM leases`).Scan(&holder, &left))
	require.Equal(t, "b", holder)
	require.Positive(t, left, "another's lease is not given back")
}

func TestAFailedInaugurationIsTriedAgain(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "store", func(t *testing.T, db *database.DB) {
		o := newOfficer(t, lease.Config{Name: "relay", Holder: "a", Poll: time.Millisecond}, db)
		o.fail = errors.New("not today")
		o.serve(t)
		for range 3 {
			require.Equal(t, "inaugurate", next(t, o.steps).what)
		}
	})
}

// A hint wakes a follower that would have looked in an hour, over a real broker.
func TestHintsHandOverAtOnce(t *testing.T) {
	t.Parallel()
	db, url := databasetest.Postgres(t, "store")
	server := brokertest.Server(t)
	config := func(holder string) lease.Config {
		return lease.Config{
			Name: "relay", Holder: holder, TTL: time.Hour, Poll: time.Hour,
			Hints: lease.Over(brokertest.Connect(t, server).NATS),
		}
	}
	a := newOfficer(t, config("a"), db)
	stop := a.serve(t)
	next(t, a.steps)
	next(t, a.steps)
	other, err := database.Open(url, database.Options{Schema: "store"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, other.Close()) })
	b := newOfficer(t, config("b"), other)
	b.serve(t)
	// It has looked once, in vain, when its poke has been taken.
	require.Eventually(t, func() bool {
		var looks int64
		err := db.Read().QueryRowContext(t.Context(), `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND query LIKE '%FROM leases WHERE name%' AND state = 'idle'`).Scan(&looks)
		return err == nil && looks > 0
	}, patience, 5*time.Millisecond)
	require.Empty(t, b.steps)
	began := time.Now()
	stop()
	require.Equal(t, "inaugurate", next(t, b.steps).what)
	t.Logf("handed over %s after the stop", time.Since(began).Round(time.Microsecond))
	require.Equal(t, lease.Following, a.State())
}
