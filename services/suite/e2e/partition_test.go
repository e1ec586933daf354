package e2e_test

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/suite/e2e"
)

// longer is a time that is short in every test run and as long as it should be in the long ones.
func longer(short, long time.Duration) time.Duration {
	if testing.Short() {
		return short
	}
	return long
}

// lasts lets a fault last.
func lasts(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-t.Context().Done():
		require.NoError(t, t.Context().Err())
	case <-time.After(d):
	}
}

// TestPartitions cuts one service off one server under load, one pair after another: what was sent arrives when the
// network is back, long after everybody gave it up.
func TestPartitions(t *testing.T) {
	t.Parallel()
	c := startClusterOf(t, e2e.ClusterConfig{Replicas: 1, Proxied: true})
	last := longer(2500*time.Millisecond, 10*time.Second)
	underLoad(t, c.Line(), crashSeed(t), func(_ context.Context, facts func() int) {
		for _, service := range []string{"mailer", "store"} {
			for _, server := range []string{"nats", "postgres"} {
				grow(t, facts, 10)
				cut := c.Between(service, server)
				cut.Hold()
				lasts(t, last)
				cut.Pass()
				healed := time.Now()
				grow(t, facts, 10)
				ready := isReady(t, c.Line())
				t.Logf("%s without %s for %s: orders go on %s after, ready after %s more", service, server, last,
					time.Since(healed).Round(time.Millisecond)-ready, ready)
			}
		}
	})
}

// TestBrokerThatDoesNotAnswer leaves the relay with a broker that takes everything and answers nothing: it does not
// give up, uses next to no CPU, and goes on at once.
func TestBrokerThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	signal := func(s syscall.Signal) func(*testing.T, *e2e.Cluster) {
		return func(t *testing.T, c *e2e.Cluster) { require.NoError(t, c.NATS.Signal(s)) }
	}
	for name, fault := range map[string]struct {
		begin, end func(*testing.T, *e2e.Cluster)
	}{
		"frozen": {signal(syscall.SIGSTOP), signal(syscall.SIGCONT)},
		"swallowed": {
			func(_ *testing.T, c *e2e.Cluster) { c.Between("store", "nats").Swallow() },
			func(_ *testing.T, c *e2e.Cluster) { c.Between("store", "nats").Pass() },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := startClusterOf(t, e2e.ClusterConfig{Replicas: 1, Proxied: true})
			b := begin(t, c.Line())
			b.trade(t, 20)
			b.conserved(t)
			fault.begin(t, c)
			t.Cleanup(func() { fault.end(t, c) }) // or a failed test could not stop it
			b.trade(t, 20)
			waits(t, c, longer(8*time.Second, 25*time.Second))
			before := metricOf(t, c.Line().Admins[0], published)
			fault.end(t, c)
			healed := time.Now()
			require.Eventually(t, func() bool { return metricOf(t, c.Line().Admins[0], published) > before },
				5*time.Second, 5*time.Millisecond, "the relay does not go on at once")
			t.Logf("published again %s after", time.Since(healed).Round(time.Millisecond))
			b.conserved(t)
		})
	}
}

const (
	published = "pillarbox_store_relay_published_total"
	failed    = "pillarbox_store_relay_errors_total"
)

// waits requires that the relay tries again all the time, but not more than about once a second, and that the store
// is otherwise idle.
func waits(t *testing.T, c *e2e.Cluster, window time.Duration) {
	t.Helper()
	store, admin := c.Services["store"][0], c.Line().Admins[0]
	logged(t, store, 0, "relay waits and tries again")
	errors := metricOf(t, admin, failed)
	used, err := store.CPU()
	require.NoError(t, err)
	lasts(t, window)
	tried := metricOf(t, admin, failed) - errors
	now, err := store.CPU()
	require.NoError(t, err)
	t.Logf("in %s: %.0f tries failed, %s of CPU time", window, tried, now-used)
	// A batch that nobody answers takes 6 s.
	require.GreaterOrEqual(t, tried, window.Seconds()/8, "the relay gave up")
	require.LessOrEqual(t, tried, 2*window.Seconds(), "the relay spins")
	require.Less(t, now-used, window/5, "the store spins")
}

// TestAFullStreamIsBackPressure: nobody takes the events of a small stream, so the relay waits, the outbox grows up
// to its limit and shops are asked to come again; nothing is lost, and once the events are taken everything goes on.
func TestAFullStreamIsBackPressure(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, "PILLARBOX_STORE_STREAM_MAX_BYTES=1048576", "PILLARBOX_STORE_OUTBOX_LIMIT=60", "PILLARBOX_STORE_OUTBOX_MAX_AGE=1s")
	b := begin(t, c.Line())
	b.client.GiveUp = 2 * time.Minute
	mailer := c.Services["mailer"][0]
	require.NoError(t, mailer.Stop())
	var seen surprises
	b.client.OnRetry = seen.note
	big := e2e.Body("ada@example.com", "EUR", 1, "1.00")
	items := big["items"].([]map[string]any)
	big["items"] = slices.Repeat(items, 80)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	loaded := make(chan error, 8)
	for worker := range cap(loaded) {
		go func() {
			for n := 0; ctx.Err() == nil; n++ {
				if _, err := b.client.PlaceWithKey(b.ctx, fmt.Sprintf("%d-%d", worker, n), big); err != nil {
					loaded <- err
					return
				}
			}
			loaded <- nil
		}()
	}
	store := c.Line().Admins[0]
	var failing map[string]string
	require.Eventually(t, func() bool {
		seen.mu.Lock()
		defer seen.mu.Unlock()
		failing = e2e.Line{Admins: []string{store}}.Failing(t.Context())
		return seen.notNow > 0 && failing["store"] != "" && metricOf(t, store, "pillarbox_store_relay_stream_full_total") > 0
	}, deadline, 20*time.Millisecond, "%v", &failing)
	stop()
	full := b.truth.Count()
	require.NoError(t, mailer.Run(t.Context()))
	begun := time.Now()
	for range cap(loaded) {
		require.NoError(t, <-loaded) // the request that each of them has under way is accepted now
	}
	require.Greater(t, b.truth.Count(), full, "nobody was kept waiting")
	t.Logf("full with %d events: %s; %d answers 503; orders accepted %s after the consumer was back", full, failing["store"],
		seen.notNow, time.Since(begun).Round(time.Millisecond))
	b.conserved(t)
	isReady(t, c.Line())
	require.Empty(t, seen.others)
}
