package embedded_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/broker/embedded"
	"github.com/pillarbox/pillarbox/shared/logs"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// Nothing is ignored: a stopped server leaves no goroutine.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const soon = 10 * time.Second

func start(t *testing.T, c embedded.Config) *embedded.Server {
	t.Helper()
	s, err := embedded.Start(t.Context(), c, logs.Discard())
	require.NoError(t, err)
	t.Cleanup(s.Stop)
	return s
}

func connect(t *testing.T, s *embedded.Server) *broker.Conn {
	t.Helper()
	conn, err := broker.Connect(broker.Config{Server: s, Token: s.Token()}, logs.Discard())
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	require.Eventually(t, func() bool { return conn.Ready(t.Context()) == nil }, soon, 5*time.Millisecond)
	return conn
}

func TestTwoServersInOneProcess(t *testing.T) {
	t.Parallel()
	one, two := start(t, embedded.Config{Dir: t.TempDir()}), start(t, embedded.Config{Dir: t.TempDir()})
	require.NotEqual(t, one.ClientURL(), two.ClientURL())
	_, err := connect(t, one).EnsureStream(t.Context(), broker.StreamConfig{Name: "orders"})
	require.NoError(t, err)
	_, err = connect(t, two).Stream(t.Context(), "orders")
	require.ErrorIs(t, err, broker.ErrNoStream)
}

func TestStartAgainOnTheSameFolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := start(t, embedded.Config{Dir: dir})
	require.True(t, s.SyncsAlways(), "what is confirmed is on disk")
	conn := connect(t, s)
	before, err := conn.EnsureStream(t.Context(), broker.StreamConfig{Name: "orders", FirstSeq: 7})
	require.NoError(t, err)
	conn.Close()
	s.Stop()
	s.Stop()
	after, err := connect(t, start(t, embedded.Config{Dir: dir})).Stream(t.Context(), "orders")
	require.NoError(t, err)
	require.Equal(t, before, after)
}

func TestTokenIsRequired(t *testing.T) {
	t.Parallel()
	s := start(t, embedded.Config{Dir: t.TempDir(), Token: "secret"})
	for _, o := range [][]nats.Option{{}, {nats.Token("wrong")}} {
		_, err := nats.Connect(s.ClientURL(), o...)
		require.ErrorIs(t, err, nats.ErrAuthorization)
	}
	nc, err := nats.Connect(s.ClientURL(), nats.Token("secret"))
	require.NoError(t, err)
	nc.Close()
	require.NoError(t, connect(t, s).Ready(t.Context()))
}

func TestDontListen(t *testing.T) {
	t.Parallel()
	s := start(t, embedded.Config{Dir: t.TempDir(), DontListen: true})
	require.Nil(t, s.Addr())
	require.NoError(t, connect(t, s).Ready(t.Context()))
}

func TestListensOnLoopbackOnly(t *testing.T) {
	t.Parallel()
	s := start(t, embedded.Config{Dir: t.TempDir()})
	require.Contains(t, s.Addr().String(), "127.0.0.1:")
}

func TestStartFails(t *testing.T) {
	t.Parallel()
	_, err := embedded.Start(t.Context(), embedded.Config{}, nil)
	require.Error(t, err)

	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err = embedded.Start(t.Context(), embedded.Config{Dir: file}, nil)
	require.ErrorContains(t, err, "JetStream")

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = embedded.Start(ended, embedded.Config{Dir: t.TempDir()}, nil)
	require.ErrorIs(t, err, context.Canceled)

	taken := start(t, embedded.Config{Dir: t.TempDir()})
	_, err = embedded.Start(t.Context(), embedded.Config{Dir: t.TempDir(), Port: taken.Addr().(*net.TCPAddr).Port}, nil)
	require.Error(t, err)
}
