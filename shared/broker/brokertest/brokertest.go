// Package brokertest gives tests a JetStream server of their own: in the
// process, or as a process that can be killed. Only tests import it.
package brokertest

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/broker/embedded"
	"github.com/pillarbox/pillarbox/shared/logs"
	"github.com/stretchr/testify/require"
)

// maxStore is only a number that streams reserve from; nothing is allocated.
const maxStore = 1 << 40

// Server starts an embedded server in a temporary folder, stopped at the end of the test.
func Server(t testing.TB) *embedded.Server {
	t.Helper()
	s, err := embedded.Start(t.Context(), embedded.Config{
		Dir: t.TempDir(), Token: uuid.NewString(), MaxStore: maxStore,
	}, logs.Discard())
	require.NoError(t, err)
	t.Cleanup(s.Stop)
	return s
}

// Connect returns a connection to s, closed at the end of the test.
func Connect(t testing.TB, s *embedded.Server) *broker.Conn {
	t.Helper()
	return connect(t, broker.Config{Server: s, Token: s.Token(), Name: t.Name()})
}

// ConnectURL returns a connection to the server at url, closed at the end of the test.
func ConnectURL(t testing.TB, url string) *broker.Conn {
	t.Helper()
	return connect(t, broker.Config{URL: url, Name: t.Name()})
}

func connect(t testing.TB, c broker.Config) *broker.Conn {
	t.Helper()
	conn, err := broker.Connect(c, logs.Discard())
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	require.Eventually(t, conn.NATS.IsConnected, 10*time.Second, 5*time.Millisecond, "no connection to the test's broker")
	return conn
}
