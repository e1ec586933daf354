package intake_test

import (
	"bytes"
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/store/internal/intake"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
)

// wire is a connection to PostgreSQL that the test can cut: all at once, or when a batch with an order in it, which
// commits by itself, has been passed on and its confirmation has not.
type wire struct {
	listener  net.Listener
	target    string
	mu        sync.Mutex // guards what follows
	conns     map[net.Conn]bool
	down      bool
	cutCommit bool
	handlers  sync.WaitGroup
}

func newWire(t *testing.T, target string) *wire {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	w := &wire{listener: listener, target: target, conns: map[net.Conn]bool{}}
	w.handlers.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			w.handlers.Go(func() { w.serve(client) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		w.set(true)
		w.handlers.Wait()
	})
	return w
}

// set cuts the wire or mends it.
func (w *wire) set(down bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down = down
	if down {
		for c := range w.conns {
			_ = c.Close()
		}
	}
}

func (w *wire) keep(c net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.down {
		_ = c.Close()
		return false
	}
	w.conns[c] = true
	return true
}

func (w *wire) serve(client net.Conn) {
	server, err := net.Dial("tcp", w.target)
	if err != nil || !w.keep(client) || !w.keep(server) {
		_ = client.Close()
		return
	}
	defer func() { _, _ = client.Close(), server.Close() }()
	w.handlers.Go(func() {
		_, _ = io.Copy(client, server)
		_ = client.Close()
	})
	buffer := make([]byte, 64<<10)
	for {
		n, err := client.Read(buffer)
		if err != nil {
			return
		}
		w.mu.Lock()
		cut := w.cutCommit && bytes.Contains(buffer[:n], []byte(`"sku"`))
		if cut {
			w.cutCommit = false
		}
		w.mu.Unlock()
		if cut {
			_ = client.Close() // first, so that the confirmation cannot come through
		}
		if _, err := server.Write(buffer[:n]); err != nil || cut {
			return
		}
	}
}

// throughWire opens the database of a new test over a wire.
func throughWire(t *testing.T) (direct, wired *database.DB, w *wire) {
	t.Helper()
	direct, raw := databasetest.Postgres(t, "store")
	u, err := url.Parse(raw)
	require.NoError(t, err)
	w = newWire(t, u.Host)
	u.Host = w.listener.Addr().String()
	wired, err = database.Open(u.String(), database.Options{Schema: "store"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, wired.Close()) })
	return direct, wired, w
}

func TestDatabaseAwayAndBack(t *testing.T) {
	t.Parallel()
	direct, wired, w := throughWire(t)
	d := newDesk(t, wired, intake.Config{})
	d.start()
	d.mustPlace()
	w.set(true)
	_, err := d.place(nil)
	require.ErrorIs(t, err, intake.ErrUnavailable)
	require.Equal(t, 1, count(t, direct, "orders"))
	w.set(false)
	require.Eventually(t, func() bool {
		_, err := d.place(nil)
		return err == nil
	}, deadline, 10*time.Millisecond)
	require.Equal(t, 2, count(t, direct, "orders"))
}

func TestUnknownCommitIsToldAndSafeToRepeat(t *testing.T) {
	t.Parallel()
	direct, wired, w := throughWire(t)
	d := newDesk(t, wired, intake.Config{Committers: 1})
	var clients sync.WaitGroup
	w.cutCommit = true
	for _, key := range []string{"a", "b"} {
		clients.Go(func() {
			_, err := d.place(keyed(key, "f"))
			require.ErrorIs(t, err, intake.ErrUnknown)
		})
	}
	d.queued(2)
	d.start()
	clients.Wait()
	for _, key := range []string{"a", "b"} {
		require.Eventually(t, func() bool {
			_, err := d.place(keyed(key, "f"))
			return err == nil
		}, deadline, 10*time.Millisecond)
	}
	require.Equal(t, 2, count(t, direct, "orders"))
	require.Equal(t, 2, count(t, direct, "outbox"))
}
