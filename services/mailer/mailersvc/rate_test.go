package mailersvc_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/mailer/mailersvc"
	"github.com/pillarbox/pillarbox/shared/consumer"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
	"github.com/pillarbox/pillarbox/shared/logs"
)

func placed(t *testing.T, orders int) (bodies [][]byte) {
	t.Helper()
	for o := range orders {
		bodies = append(bodies, event(t, fmt.Sprintf("o%d", o), 1, nil))
	}
	return bodies
}

func TestReplicasShareTheRate(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "mailer", func(t *testing.T, db *database.DB) {
		const rate, burst, orders = 40, 40, 100
		b := setup(t, db)
		config := mailersvc.Config{Rate: rate, Burst: burst, Sweep: 10 * time.Minute}
		first, _ := b.startAs(t, config)
		b.startAs(t, config)
		b.ready(t, first)
		start := time.Now()
		b.publish(t, placed(t, orders)...)
		b.waitFor(t, orders)
		took := time.Since(start).Seconds()
		require.Greater(t, took, float64(orders-burst)/rate, "faster than the rate")
		b.settled(t)
		require.Zero(t, b.count(t, "parked"))
	})
}

// TestAStopDoesNotWaitForTheRate: what waits for the budget is given back without an attempt, and
// another replica, here one without a rate, sends it.
func TestAStopDoesNotWaitForTheRate(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "mailer", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		s, stop := b.startAs(t, mailersvc.Config{Rate: 0.02, Burst: 2, Policy: consumer.Policy{Drain: time.Minute}})
		b.ready(t, s)
		b.publish(t, placed(t, 8)...)
		b.waitFor(t, 2) // the next one is due in 50 s
		start := time.Now()
		stop()
		require.Less(t, time.Since(start), 10*time.Second)
		b.startAs(t, mailersvc.Config{})
		b.waitFor(t, 8)
		b.settled(t)
		require.Zero(t, b.count(t, "parked"))
		require.Zero(t, b.count(t, "dead_letters"))
	})
}

func TestTheRateIsMeasured(t *testing.T) {
	t.Parallel()
	db, _ := databasetest.SQLite(t, "mailer")
	b := setup(t, db)
	reg := prometheus.NewPedanticRegistry()
	_, err := mailersvc.New(mailersvc.Config{Pickup: b.dir, Rate: 5}, mailersvc.Deps{DB: db, Broker: b.conn, Log: logs.Discard(), Registry: reg})
	require.NoError(t, err)
	families, err := reg.Gather()
	require.NoError(t, err)
	var names []string
	for _, family := range families {
		names = append(names, family.GetName())
	}
	require.Contains(t, names, "pace_passed_events_total")
	require.Contains(t, names, "pace_wait_seconds")
}
