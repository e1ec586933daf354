//go:build unix

package database_test

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/shared/database"
)

func TestQuietNeitherWaitsNorSwallows(t *testing.T) {
	t.Parallel()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	client, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	defer client.Close()
	server, err := l.Accept()
	require.NoError(t, err)
	defer server.Close()
	require.True(t, database.Quiet(client))

	// With a reader waiting on the connection, as the driver's does after a slow write.
	var reader sync.WaitGroup
	reader.Go(func() { _, _ = io.ReadFull(client, make([]byte, 1)) })
	require.Never(t, func() bool { return !database.Quiet(client) }, 200*time.Millisecond, time.Millisecond)
	answer := make(chan bool, 1)
	go func() { answer <- database.Quiet(client) }()
	require.True(t, next(t, answer))
	_, err = server.Write([]byte("a"))
	require.NoError(t, err)
	reader.Wait()

	_, err = server.Write([]byte("E"))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return !database.Quiet(client) }, patience, time.Millisecond, "something to read")
	_, err = io.ReadFull(client, make([]byte, 1))
	require.NoError(t, err)
	require.True(t, database.Quiet(client), "it was there to be read")
	require.NoError(t, server.Close())
	require.Eventually(t, func() bool { return !database.Quiet(client) }, patience, time.Millisecond, "closed")
}

func next[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		require.FailNow(t, "nothing came in time")
		panic("unreachable")
	}
}
