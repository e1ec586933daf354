package e2e_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/suite/e2e"
	"github.com/pillarbox/pillarbox/shared/events"
)

// metricOf is a metric of one process of the line.
func metricOf(t *testing.T, admin, name string) float64 {
	t.Helper()
	n, err := e2e.Line{Admins: []string{admin}}.Metric(t.Context(), name)
	require.NoError(t, err)
	return n
}

// TestFrozenRelayLeader freezes the relay's leader for longer than its lease, at
// worst between a publish that the broker confirmed and the transaction that says
// so: the other store takes over and publishes the same events again, and when
// the first one thaws its write is refused. No effect is doubled.
func TestFrozenRelayLeader(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t, 2)
	first, second := cluster.Services["store"][0], cluster.Services["store"][1]
	admins := cluster.Line().Admins[:2] // of the stores
	steps := []string{"store.relay.published:2:pause"}
	if !testing.Short() {
		steps = append(steps, "store.relay.read:4:pause", "store.relay.settled:3:pause")
	}
	underLoad(t, cluster.Line(), crashSeed(t), func(ctx context.Context, facts func() int) {
		for n, step := range steps {
			grow(t, facts, 10)
			require.NoError(t, second.Stop())
			require.NoError(t, first.Stop())
			from := len(first.LogSince(0))
			freezeAt(t, ctx, first, step) // alone, so that it leads
			frozen := time.Now()
			require.NoError(t, second.Run(ctx))
			const published = "pillarbox_store_relay_published_total"
			require.Eventually(t, func() bool { return metricOf(t, admins[1], published) > 0 },
				deadline, 10*time.Millisecond, "%s: nobody leads", step)
			led := time.Since(frozen).Round(time.Millisecond)
			require.NoError(t, first.Thaw())
			if n == 0 {
				require.Eventually(t, func() bool { return metricOf(t, admins[0], "pillarbox_store_relay_conflicts_total") > 0 },
					deadline, 10*time.Millisecond, "the write of the leader of the past was not refused")
			}
			logged(t, first, from, "lease lost")
			t.Logf("%s: the other store publishes %s after the freeze", step, led)
		}
		grow(t, facts, 20)
	})
}

// TestConsumerFrozenAcrossABrokerRestore freezes a mailer that holds messages
// before its commit. Meanwhile the broker's store is replaced by an older copy that
// does not have these messages, the relay publishes the lost ones again under the
// same sequences, and when the mailer thaws its late acknowledgements reach nothing that it
// has not handled.
func TestConsumerFrozenAcrossABrokerRestore(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t, 1)
	mailer := cluster.Services["mailer"][0]
	copied := filepath.Join(t.TempDir(), "nats")
	underLoad(t, cluster.Line(), crashSeed(t), func(ctx context.Context, facts func() int) {
		grow(t, facts, 30)
		require.NoError(t, cluster.NATS.Stop())
		copyTree(t, cluster.NATSStore(), copied)
		require.NoError(t, cluster.NATS.Run(ctx))
		older := streamState(t, cluster.Line()).last
		require.Eventually(t, func() bool {
			now, err := readStream(ctx, cluster.Line())
			return err == nil && now.last > older+30
		}, deadline, 20*time.Millisecond, "the relay does not go on")
		require.Eventually(t, func() bool { return acknowledged(t, cluster.Line(), "mailer") > int(older) },
			deadline, 20*time.Millisecond, "the mailer does not go on")
		require.NoError(t, mailer.Stop())
		freezeAt(t, ctx, mailer, "mailer.before_commit:2:pause")
		before := streamState(t, cluster.Line())
		require.Positive(t, before.held, "the mailer holds nothing")
		require.Greater(t, before.last, older+30)
		require.NoError(t, cluster.NATS.Kill())
		require.NoError(t, os.RemoveAll(cluster.NATSStore()))
		copyTree(t, copied, cluster.NATSStore())
		require.NoError(t, cluster.NATS.Run(ctx))
		// The lost sequences are taken again, those that the mailer holds among them.
		require.Eventually(t, func() bool {
			now, err := readStream(ctx, cluster.Line())
			return err == nil && now.last > before.last
		}, deadline, 50*time.Millisecond, "the relay publishes nothing")
		require.NoError(t, mailer.Thaw())
		grow(t, facts, 30)
		var refilled float64
		require.Eventually(t, func() bool {
			refilled = metricOf(t, cluster.Line().Admins[0], "pillarbox_store_relay_refilled_total")
			return refilled > 0
		}, deadline, 50*time.Millisecond, "the relay has not published what was lost")
		t.Logf("%d messages held over the restore; %.0f events refilled", before.held, refilled)
	})
}

// stream is what a test sees of the broker's stream.
type stream struct {
	last uint64
	held int // delivered to the mailer and not acknowledged
}

func streamState(t *testing.T, line e2e.Line) stream {
	t.Helper()
	s, err := readStream(t.Context(), line)
	require.NoError(t, err)
	return s
}

func readStream(ctx context.Context, line e2e.Line) (s stream, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := nats.Connect(line.Publisher, nats.Token(line.Token))
	if err != nil {
		return s, err
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		return s, err
	}
	orders, err := js.Stream(ctx, events.StreamOrders)
	if err != nil {
		return s, err
	}
	s.last = orders.CachedInfo().State.LastSeq
	consumers := orders.ListConsumers(ctx)
	for info := range consumers.Info() {
		if strings.HasPrefix(info.Name, "mailer-") {
			s.held += info.NumAckPending
		}
	}
	return s, consumers.Err()
}

// TestTenReplicasStartAtOnce starts ten of each service at once on an empty
// database, the mailers also on an empty pickup folder: each of them becomes ready.
func TestTenReplicasStartAtOnce(t *testing.T) {
	t.Parallel()
	b, err := binaries()
	require.NoError(t, err)
	cluster, err := e2e.NewCluster(t.Context(), e2e.ClusterConfig{Dir: t.TempDir(), Binaries: b, Replicas: 10})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, cluster.Close()) })
	for _, service := range []string{"store", "mailer", "audit", "loyalty"} {
		begun := time.Now()
		for _, p := range cluster.Services[service] {
			require.NoError(t, p.Start())
		}
		for _, p := range cluster.Services[service] {
			require.NoError(t, p.WaitReady(t.Context()))
		}
		t.Logf("ten of %s ready after %s", service, time.Since(begun).Round(time.Millisecond))
	}
	bench := begin(t, cluster.Line())
	for range 40 {
		o, err := bench.client.Place(bench.ctx, e2e.Body("ada@example.com", "EUR", 1, "1.00"))
		require.NoError(t, err)
		_, err = bench.client.Change(bench.ctx, o, 2, "1.00")
		require.NoError(t, err)
	}
	bench.conserved(t)
	require.NoError(t, cluster.Stop())
}
