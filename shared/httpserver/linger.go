package httpserver

import (
	"net"
	"net/http"
	"time"
)

// lastAnswers lets every answer during a stop end its connection, and tells the client so.
func (s *Server) lastAnswers(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.stopping.Load() {
			w.Header().Set("Connection", "close")
		}
		h.ServeHTTP(w, r)
	})
}

// watch is the http.Server.ConnState hook.
func (s *Server) watch(c net.Conn, state http.ConnState) {
	s.silent.watch(c, state)
	switch state {
	case http.StateNew:
		s.open.Add(1)
	case http.StateClosed, http.StateHijacked:
		s.open.Add(-1)
	}
}

// linger waits until no connection is open, or to the end of the linger time.
func (s *Server) linger() {
	end := time.NewTimer(s.config.LingerTimeout)
	defer end.Stop()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for s.open.Load() > 0 {
		select {
		case <-look.C:
		case <-end.C:
			return
		}
	}
}
