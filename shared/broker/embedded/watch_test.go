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

func run(t *testing.T, s *embedded.Server) (stop func(), ended <-chan error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() { result <- s.Run(ctx) }()
	return cancel, result
}

// The failed fsync itself is tried with strace, and the full disk with a small one, in the end-to-end tests.
func TestAServerWhoseStoreIsGoneStartsAnew(t *testing.T) {
	t.Parallel()
	s := start(t, embedded.Config{Dir: t.TempDir()})
	url := s.ClientURL()
	stop, ended := run(t, s)
	conn := connect(t, s)
	before, err := conn.EnsureStream(t.Context(), broker.StreamConfig{Name: "orders", FirstSeq: 7})
	require.NoError(t, err)
	require.NoError(t, s.Break())
	require.Eventually(t, func() bool {
		after, err := conn.Stream(t.Context(), "orders")
		return err == nil && after == before
	}, 2*soon, 5*time.Millisecond, "the same connection finds the same stream at the new server")
	require.Equal(t, url, s.ClientURL())
	stop()
	require.NoError(t, <-ended)
}

func TestAHealthyServerIsLeftAlone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := start(t, embedded.Config{Dir: dir})
	_, err := connect(t, s).EnsureStream(t.Context(), broker.StreamConfig{Name: "orders"})
	require.NoError(t, err)
	// The server complains about a folder that is no stream, now and after each start.
	require.NoError(t, os.Mkdir(filepath.Join(dir, "jetstream", "$G", "streams", "ghost"), 0o700))
	require.NotEmpty(t, s.Complaint())
	stop, ended := run(t, s)
	same := s.ID()
	select {
	case err := <-ended:
		require.NoError(t, err, "ended by itself")
	case <-time.After(4 * time.Second):
	}
	require.Equal(t, same, s.ID())
	stop()
	require.NoError(t, <-ended)
}
