package smtp

import (
	"errors"
	"net"
	"sync/atomic"
	"time"
)

// maxAnswer bounds what the server may send between two commands, a TLS handshake included.
const maxAnswer = 256 << 10

var errTalkative = errors.New("the mail server sends too much")

// wire is the connection below TLS: it bounds what is read, and can be cut from another goroutine.
type wire struct {
	net.Conn
	left atomic.Int64
}

// allow gives the next step its time and its answer's size.
func (w *wire) allow(d time.Duration) { w.until(time.Now().Add(d)) }

func (w *wire) until(t time.Time) {
	w.left.Store(maxAnswer)
	_ = w.SetDeadline(t) // fails on a closed connection only, and the next read says so
}

// Read reads no more than was allowed.
func (w *wire) Read(p []byte) (int, error) {
	left := w.left.Load()
	if left <= 0 {
		return 0, errTalkative
	}
	n, err := w.Conn.Read(p[:min(int64(len(p)), left)])
	w.left.Add(-int64(n))
	return n, err
}

func (w *wire) cut() { _ = w.Close() }
