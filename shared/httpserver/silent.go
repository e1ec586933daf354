package httpserver

import (
	"net"
	"net/http"
	"sync"
)

// silent are the connections that have not sent a byte yet. http.Server.Shutdown
// waits five seconds for them; a stop need not.
type silent struct {
	mu      sync.Mutex // guards both
	conns   map[net.Conn]struct{}
	stopped bool
}

// watch is an http.Server.ConnState hook.
func (s *silent) watch(c net.Conn, state http.ConnState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case state != http.StateNew:
		delete(s.conns, c)
	case s.stopped:
		_ = c.Close() // nothing was said on it
	default:
		s.conns[c] = struct{}{}
	}
}

// stop closes them, and those that still come.
func (s *silent) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	for c := range s.conns {
		_ = c.Close() // nothing was said on it
	}
}
