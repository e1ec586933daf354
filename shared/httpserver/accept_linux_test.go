package httpserver_test

import (
	"bufio"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/shared/httpserver"
)

// TestQueuedConnectionsAreAnswered: connections that nobody has accepted when the server stops are
// made as far as their clients know, and get their answer.
func TestQueuedConnectionsAreAnswered(t *testing.T) {
	t.Parallel()
	addr, stop := run(t, httpserver.Config{MaxConns: 1, LingerTimeout: 5 * time.Second}, http.HandlerFunc(httpserver.NotFound))
	first, firstReader := keptConn(t, addr) // with it the server accepts no more
	var queued []net.Conn
	for range 5 {
		conn, err := net.Dial("tcp", addr)
		require.NoError(t, err)
		defer conn.Close()
		require.NoError(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
		_, err = conn.Write([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
		require.NoError(t, err)
		queued = append(queued, conn)
	}
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	for _, conn := range queued {
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		require.NoError(t, err)
		require.Equal(t, http.StatusNotFound, answer.StatusCode)
		require.True(t, answer.Close)
	}
	require.True(t, ask(t, first, firstReader).Close)
	require.NoError(t, <-stopped)
}
