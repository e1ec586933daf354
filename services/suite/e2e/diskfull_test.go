package e2e_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/suite/e2e"
	"github.com/pillarbox/pillarbox/shared/database/databasetest/postgres"
)

// disk is a small file system for a server's or the suite's files, that a test fills and gives back.
type disk struct {
	dir    string
	filler string
}

// newDisk mounts one that other users may enter, as PostgreSQL does.
func newDisk(t *testing.T, size string) disk {
	t.Helper()
	dir := newMounts(t).tmpfs(size)
	for parent := dir; parent != os.TempDir() && parent != "/"; parent = filepath.Dir(parent) {
		require.NoError(t, os.Chmod(parent, 0o755))
	}
	return disk{dir, filepath.Join(dir, "filler")}
}

func (d disk) fill(t *testing.T) { fill(t, d.filler) }

func (d disk) free(t *testing.T) { require.NoError(t, os.Remove(d.filler)) }

// TestBrokerDiskFull fills the disk of a NATS server of its own: orders are accepted all the while, the relay says that
// it waits, and goes on once there is space and the server was started again.
func TestBrokerDiskFull(t *testing.T) {
	t.Parallel()
	d := newDisk(t, "8m")
	c := startClusterOf(t, e2e.ClusterConfig{Replicas: 1, NATSDir: filepath.Join(d.dir, "nats")})
	store := c.Services["store"][0]
	underLoad(t, c.Line(), crashSeed(t), func(ctx context.Context, facts func() int) {
		grow(t, facts, 20)
		from := len(store.LogSince(0))
		d.fill(t)
		logged(t, store, from, "relay waits and tries again")
		grow(t, facts, 20)
		d.free(t)
		grow(t, facts, 20)
		require.NotContains(t, store.LogSince(from), "relay goes on", "a new start is not needed any more: change the docs")
		require.NoError(t, c.NATS.Kill())
		require.NoError(t, c.NATS.Run(ctx))
		restarted := time.Now()
		logged(t, store, from, "relay goes on")
		t.Logf("the relay goes on %s after the broker's new start", time.Since(restarted).Round(time.Millisecond))
		grow(t, facts, 20)
	})
}

// TestSuiteBrokerDiskFull does it to the embedded broker, which takes nothing more until it is started anew: the suite
// does that by itself, again and again while the disk is full, accepts orders meanwhile, and goes on once there is space.
func TestSuiteBrokerDiskFull(t *testing.T) {
	t.Parallel()
	m := newMounts(t)
	d := newDisk(t, "8m")
	suite := startSuiteProcess(t)
	require.NoError(t, suite.Stop())
	store, content := filepath.Join(suite.Dir, "nats"), filepath.Join(d.dir, "nats")
	copyTree(t, store, content)
	m.bind(content, store)
	require.NoError(t, suite.Run(t.Context()))
	underLoad(t, suite.Line(), crashSeed(t), func(ctx context.Context, facts func() int) {
		grow(t, facts, 20)
		from := len(suite.LogSince(0))
		d.fill(t)
		logged(t, suite.Process, from, "the broker's store does not work any more", "no space left on device")
		grow(t, facts, 20) // orders are accepted all the while
		require.True(t, suite.Alive())
		from = len(suite.LogSince(0))
		d.free(t)
		freed := time.Now()
		logged(t, suite.Process, from, "relay goes on")
		t.Logf("the relay goes on %s after there is space", time.Since(freed).Round(time.Millisecond))
		grow(t, facts, 20)
	})
	require.NoError(t, suite.Stop()) // before its folder goes
}

// TestSuiteDatabaseDiskFull fills the disk with the SQLite files, while there is still space for the broker and the
// mails: shops are asked to come again, consumers pause, and all goes on by itself once there is space.
func TestSuiteDatabaseDiskFull(t *testing.T) {
	t.Parallel()
	m := newMounts(t)
	d := newDisk(t, "16m")
	suite := startSuiteProcess(t)
	require.NoError(t, suite.Stop())
	elsewhere := t.TempDir()
	for _, folder := range []string{"nats", "pickup"} {
		copyTree(t, filepath.Join(suite.Dir, folder), filepath.Join(elsewhere, folder))
	}
	copyTree(t, suite.Dir, filepath.Join(d.dir, "data"))
	m.bind(filepath.Join(d.dir, "data"), suite.Dir)
	for _, folder := range []string{"nats", "pickup"} {
		m.bind(filepath.Join(elsewhere, folder), filepath.Join(suite.Dir, folder))
	}
	require.NoError(t, suite.Run(t.Context()))
	taken := filepath.Join(elsewhere, "taken")
	require.NoError(t, os.Mkdir(taken, 0o700))
	watchedLoad(t, suite.Line(), crashSeed(t), filepath.Join(elsewhere, "pickup"), taken, func(ctx context.Context, facts func() int) {
		fullAndFree(t, d, suite.Line(), facts, suite.Process, func() { d.free(t) })
	})
	require.NoError(t, suite.Stop()) // before its folder goes
}

// TestPostgresDiskFull does it to PostgreSQL, which crashes while the disk is full (it does so by itself when it cannot
// write its log) and is started again once there is space, as its operator would.
func TestPostgresDiskFull(t *testing.T) {
	t.Parallel()
	d := newDisk(t, "160m")
	c := startClusterOf(t, e2e.ClusterConfig{
		Replicas: 1, PostgresDir: filepath.Join(d.dir, "postgres"),
		PostgresSettings: map[string]string{"min_wal_size": "32MB", "max_wal_size": "32MB", "log_min_messages": "fatal"},
	})
	underLoad(t, c.Line(), crashSeed(t), func(ctx context.Context, facts func() int) {
		fullAndFree(t, d, c.Line(), facts, c.Services["store"][0], func() {
			require.NoError(t, c.Postgres.Stop(postgres.Immediate))
			d.free(t)
			require.NoError(t, c.Postgres.Start(ctx))
		})
	})
}

// fullAndFree fills the disk of a database under load until no order is accepted any more; mend gives
// it back.
func fullAndFree(t *testing.T, d disk, line e2e.Line, facts func() int, store *e2e.Process, mend func()) {
	t.Helper()
	grow(t, facts, 20)
	from := len(store.LogSince(0))
	d.fill(t)
	filled := time.Now()
	// What is allocated already is used up first.
	logged(t, store, from, "intake transaction failed")
	standsStill(t, facts)
	failing := line.Failing(t.Context())
	t.Logf("the last order accepted %s after; not ready: %v", time.Since(filled).Round(time.Millisecond), failing)
	mend()
	freed := time.Now()
	grow(t, facts, 1)
	t.Logf("orders accepted %s after", time.Since(freed).Round(time.Millisecond))
	isReady(t, line)
	grow(t, facts, 20)
}

// standsStill waits until a second passes without a new fact.
func standsStill(t *testing.T, facts func() int) {
	t.Helper()
	last, since := facts(), time.Now()
	require.Eventually(t, func() bool {
		if now := facts(); now != last {
			last, since = now, time.Now()
		}
		return time.Since(since) > time.Second
	}, deadline, 20*time.Millisecond, "orders are accepted although the disk is full")
}
