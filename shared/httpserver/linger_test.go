package httpserver_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/shared/httpserver"
)

// keptConn is a connection on which one request was answered and that is kept.
func keptConn(t *testing.T, addr string) (net.Conn, *bufio.Reader) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
	reader := bufio.NewReader(conn)
	require.False(t, ask(t, conn, reader).Close)
	return conn, reader
}

// ask sends a request and reads the answer.
func ask(t *testing.T, conn net.Conn, reader *bufio.Reader) *http.Response {
	t.Helper()
	_, err := conn.Write([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
	require.NoError(t, err)
	answer, err := http.ReadResponse(reader, nil)
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, answer.Body)
	require.NoError(t, err)
	return answer
}

// TestKeptConnectionsEndWithAnAnswer: a client whose next request is on its way
// when the server stops gets its answer, and is told not to come back.
func TestKeptConnectionsEndWithAnAnswer(t *testing.T) {
	t.Parallel()
	addr, stop := run(t, httpserver.Config{LingerTimeout: time.Minute}, http.HandlerFunc(httpserver.NotFound))
	first, firstReader := keptConn(t, addr)
	second, secondReader := keptConn(t, addr)
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	require.Eventually(t, func() bool {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	}, 5*time.Second, time.Millisecond)
	for _, c := range []struct {
		conn   net.Conn
		reader *bufio.Reader
	}{{first, firstReader}, {second, secondReader}} {
		require.True(t, ask(t, c.conn, c.reader).Close)
		_, err := c.reader.ReadByte()
		require.Error(t, err, "the server kept the connection")
	}
	require.NoError(t, <-stopped) // long before the linger time is over
}

func TestUnusedConnectionHoldsAStopForTheLingerTimeOnly(t *testing.T) {
	t.Parallel()
	for name, linger := range map[string]time.Duration{"short": 20 * time.Millisecond, "none": -1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr, stop := run(t, httpserver.Config{LingerTimeout: linger}, http.HandlerFunc(httpserver.NotFound))
			_, reader := keptConn(t, addr)
			require.NoError(t, stop())
			_, err := reader.ReadByte()
			require.Error(t, err)
		})
	}
}
