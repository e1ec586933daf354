package embedded_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/broker/embedded"
	"github.com/stretchr/testify/require"
)

func watch(t *testing.T, s *embedded.Server) (stop func(), ended <-chan error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- s.Watch(ctx) }()
	return cancel, result
}

// The failed fsync itself is tried with strace, in the end-to-end tests.
func TestWatchTellsThatTheStoreIsGone(t *testing.T) {
	t.Parallel()
	s := start(t, embedded.Config{Dir: t.TempDir()})
	_, ended := watch(t, s)
	require.NoError(t, s.DisableJetStream())
	select {
	case err := <-ended:
		require.ErrorContains(t, err, "store does not work")
	case <-time.After(soon):
		require.Fail(t, "Watch has not noticed")
	}
}

func TestWatchLeavesAHealthyServerAlone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := start(t, embedded.Config{Dir: dir})
	_, err := connect(t, s).EnsureStream(t.Context(), broker.StreamConfig{Name: "orders"})
	require.NoError(t, err)
	// The server complains about a folder that is no stream, now and after each start.
	require.NoError(t, os.Mkdir(filepath.Join(dir, "jetstream", "$G", "streams", "ghost"), 0o700))
	require.NotEmpty(t, s.Healthz(nil).Error)
	stop, ended := watch(t, s)
	select {
	case err := <-ended:
		require.NoError(t, err, "ended by itself")
	case <-time.After(4 * time.Second):
	}
	stop()
	require.NoError(t, <-ended)
}
