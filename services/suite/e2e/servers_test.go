package e2e_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/suite/e2e"
	"github.com/pillarbox/pillarbox/shared/database/databasetest/postgres"
)

// grow waits until n more facts are acknowledged.
func grow(t *testing.T, facts func() int, n int) {
	t.Helper()
	from := facts()
	require.Eventually(t, func() bool { return facts() >= from+n }, 2*time.Minute, 20*time.Millisecond)
}

func TestPostgresCrashesUnderLoad(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t, 1)
	underLoad(t, cluster.Line(), crashSeed(t), func(ctx context.Context, facts func() int) {
		for range 2 {
			grow(t, facts, 40)
			require.NoError(t, cluster.Postgres.Restart(ctx, postgres.Immediate))
		}
		grow(t, facts, 40)
	})
}

func TestSessionsTerminatedUnderLoad(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t, 1)
	underLoad(t, cluster.Line(), crashSeed(t), func(ctx context.Context, facts func() int) {
		for range crashRounds(t, 5) {
			grow(t, facts, 20)
			require.NoError(t, cluster.SQL(ctx, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'pillarbox' AND pid <> pg_backend_pid()"))
		}
		grow(t, facts, 20)
	})
}

func TestBrokerKilledUnderLoad(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t, 1)
	underLoad(t, cluster.Line(), crashSeed(t), func(ctx context.Context, facts func() int) {
		for range 3 {
			grow(t, facts, 40)
			require.NoError(t, cluster.NATS.Kill())
			grow(t, facts, 20) // the store goes on without a broker
			require.NoError(t, cluster.NATS.Run(ctx))
		}
		grow(t, facts, 40)
	})
}

// TestBrokerStoreWiped loses everything that the broker ever confirmed.
func TestBrokerStoreWiped(t *testing.T) {
	t.Parallel()
	for name, wipe := range map[string]func(t *testing.T, ctx context.Context, c *e2e.Cluster){
		"while running": func(t *testing.T, ctx context.Context, c *e2e.Cluster) {
			require.NoError(t, os.RemoveAll(c.NATSStore()))
			require.NoError(t, c.NATS.Kill())
			require.NoError(t, os.RemoveAll(c.NATSStore()))
			require.NoError(t, c.NATS.Run(ctx))
		},
		"while stopped": func(t *testing.T, ctx context.Context, c *e2e.Cluster) {
			require.NoError(t, c.NATS.Stop())
			require.NoError(t, os.RemoveAll(c.NATSStore()))
			require.NoError(t, c.NATS.Run(ctx))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := startCluster(t, 1)
			underLoad(t, cluster.Line(), crashSeed(t), func(ctx context.Context, facts func() int) {
				grow(t, facts, 60)
				wipe(t, ctx, cluster)
				grow(t, facts, 60)
			})
		})
	}
}

// TestBrokerStoreRestoredFromAnOlderCopy loses the tail of the stream and takes
// the consumers back in time.
func TestBrokerStoreRestoredFromAnOlderCopy(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t, 1)
	copied := filepath.Join(t.TempDir(), "nats")
	underLoad(t, cluster.Line(), crashSeed(t), func(ctx context.Context, facts func() int) {
		grow(t, facts, 60)
		require.NoError(t, cluster.NATS.Stop())
		copyTree(t, cluster.NATSStore(), copied)
		require.NoError(t, cluster.NATS.Run(ctx))
		grow(t, facts, 60)
		require.NoError(t, cluster.NATS.Kill())
		require.NoError(t, os.RemoveAll(cluster.NATSStore()))
		copyTree(t, copied, cluster.NATSStore())
		require.NoError(t, cluster.NATS.Run(ctx))
		grow(t, facts, 60)
	})
}

// TestLostWhileIdle is the case that no publish would ever notice: a mailer that
// was down when the broker lost its store still gets its mails, although no
// new order comes.
func TestLostWhileIdle(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t, 1)
	b := begin(t, cluster.Line())
	require.NoError(t, cluster.Services["mailer"][0].Stop())
	for range 20 {
		_, err := b.client.Place(b.ctx, e2e.Body("ada@example.com", "EUR", 1, "1.00"))
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool {
		entries, err := b.AuditEntries(b.ctx, "")
		return err == nil && len(entries) == 20
	}, deadline, 20*time.Millisecond)
	require.NoError(t, cluster.NATS.Kill())
	require.NoError(t, os.RemoveAll(cluster.NATSStore()))
	require.NoError(t, cluster.NATS.Run(b.ctx))
	require.NoError(t, cluster.Services["mailer"][0].Run(b.ctx))
	b.conserved(t)
}

func TestSuiteBrokerStoreLost(t *testing.T) {
	t.Parallel()
	suite := startSuiteProcess(t)
	store := filepath.Join(suite.Dir, "nats")
	copied := filepath.Join(t.TempDir(), "nats")
	underLoad(t, suite.Line(), crashSeed(t), func(ctx context.Context, facts func() int) {
		grow(t, facts, 40)
		require.NoError(t, suite.Stop())
		copyTree(t, store, copied)
		require.NoError(t, suite.Run(ctx))
		grow(t, facts, 40)
		require.NoError(t, suite.Kill())
		require.NoError(t, os.RemoveAll(store))
		copyTree(t, copied, store)
		require.NoError(t, suite.Run(ctx))
		grow(t, facts, 40)
		require.NoError(t, suite.Kill())
		require.NoError(t, os.RemoveAll(store))
		require.NoError(t, suite.Run(ctx))
		grow(t, facts, 40)
	})
}

func copyTree(t *testing.T, from, to string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(to), 0o755))
	out, err := exec.Command("cp", "-a", from, to).CombinedOutput()
	require.NoError(t, err, string(out))
}
