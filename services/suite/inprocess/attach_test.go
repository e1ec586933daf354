package inprocess_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/pillarbox/pillarbox/services/suite/inprocess"
	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/logs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func attach(t *testing.T, dir string) *inprocess.Attached {
	t.Helper()
	a, err := inprocess.Attach(t.Context(), dir, logs.Discard())
	require.NoError(t, err)
	return a
}

func TestAttachToAFolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	one := attach(t, dir)
	require.True(t, one.Alone)
	_, err := one.Conn.EnsureStream(t.Context(), broker.StreamConfig{Name: "jobs"})
	require.NoError(t, err)

	two := attach(t, dir)
	require.False(t, two.Alone)
	require.False(t, two.Suite)
	_, err = two.Conn.Stream(t.Context(), "jobs")
	require.NoError(t, err)
	_, err = inprocess.Start(t.Context(), inprocess.Config{Data: dir, HTTP: "127.0.0.1:0", Admin: "127.0.0.1:0"}, logs.Discard())
	require.ErrorIs(t, err, inprocess.ErrInUse)

	// The first waits a moment for the second, and no longer.
	require.NoError(t, one.Close())
	require.NoFileExists(t, filepath.Join(dir, "run.json"))
	require.Eventually(t, func() bool { return !two.Conn.NATS.IsConnected() }, time.Minute, 10*time.Millisecond)
	require.NoError(t, two.Close())

	three := attach(t, dir)
	require.True(t, three.Alone)
	_, err = three.Conn.Stream(t.Context(), "jobs")
	require.NoError(t, err)
	require.NoError(t, three.Close())
}

// After a crash the old address is still there; whoever has the folder now has not written its own yet.
func TestAttachNeverUsesAnOldAddress(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	holder := attach(t, dir)
	path := filepath.Join(dir, "run.json")
	good, err := os.ReadFile(path)
	require.NoError(t, err)
	var run inprocess.RunFile
	require.NoError(t, json.Unmarshal(good, &run))
	other := run
	other.PID++
	old := run
	old.NATSURL = "nats://127.0.0.1:1"
	wrongToken := run
	wrongToken.NATSToken = "old"
	for _, bad := range []inprocess.RunFile{other, old, wrongToken} {
		body, err := json.Marshal(bad)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(path, body, 0o600))
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		_, err = inprocess.Attach(ctx, dir, logs.Discard())
		cancel()
		require.ErrorContains(t, err, "cannot be reached")
	}

	require.NoError(t, os.Remove(path))
	reached := make(chan *inprocess.Attached, 1)
	go func() {
		a, _ := inprocess.Attach(t.Context(), dir, logs.Discard()) // nil fails below
		reached <- a
	}()
	require.NoError(t, os.WriteFile(path+".new", good, 0o600))
	require.NoError(t, os.Rename(path+".new", path))
	a := <-reached
	require.NotNil(t, a)
	require.NoError(t, a.Close())
	require.NoError(t, holder.Close())
}

func TestAttachRefusesOtherFolders(t *testing.T) {
	t.Parallel()
	_, err := inprocess.Attach(t.Context(), filepath.Join(t.TempDir(), "none"), logs.Discard())
	require.ErrorContains(t, err, "no folder")
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "letter.txt"), nil, 0o600))
	_, err = inprocess.Attach(t.Context(), dir, logs.Discard())
	require.ErrorContains(t, err, "not a folder of Pillarbox")
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1, "nothing is left there")

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	dir = t.TempDir()
	_, err = inprocess.Attach(ended, dir, logs.Discard())
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "suite.lock"), []byte(strconv.Itoa(1<<30)), 0o600))
	a := attach(t, dir) // what a failed attempt had taken is free again
	require.True(t, a.Alone)
	require.NoError(t, a.Close())
}

// TestASuiteEndsWhenItsFolderIsGone: it would go on to accept orders into files that nobody finds. Moved, not removed,
// since the broker may write while files are removed one by one.
func TestASuiteEndsWhenItsFolderIsGone(t *testing.T) {
	t.Parallel()
	config := inprocess.Config{Data: filepath.Join(t.TempDir(), "data"), HTTP: "127.0.0.1:0", Admin: "127.0.0.1:0"}
	first, err := inprocess.Start(t.Context(), config, logs.Discard())
	require.NoError(t, err)
	require.NoError(t, os.Rename(config.Data, config.Data+".old"))
	ctx, cancel := context.WithCancel(t.Context())
	second, err := inprocess.Start(ctx, config, logs.Discard())
	require.NoError(t, err)
	require.ErrorIs(t, first.Wait(), inprocess.ErrGone)
	require.FileExists(t, filepath.Join(config.Data, "run.json"), "it is the second one's")
	cancel()
	require.NoError(t, second.Wait())
}
