package httpserver

import (
	"errors"
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

// refuse ends listening and Serve. The connections go on, also those that nobody had accepted yet.
func (s *Server) refuse(served <-chan error) error {
	last, err := lastAccepted(s.tcp)
	err = errors.Join(err, s.Close())
	<-served
	_ = s.server.Serve(&handful{last, s.tcp.Addr()}) // it ends after the last one, with net.ErrClosed
	return err
}

// handful is a listener for connections that are here already.
type handful struct {
	conns []net.Conn
	addr  net.Addr
}

func (h *handful) Accept() (net.Conn, error) {
	if len(h.conns) == 0 {
		return nil, net.ErrClosed
	}
	conn := h.conns[0]
	h.conns = h.conns[1:]
	return conn, nil
}

func (h *handful) Close() error   { return nil }
func (h *handful) Addr() net.Addr { return h.addr }
