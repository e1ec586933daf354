// Package httpserver serves HTTP with every timeout and limit set and answers
// errors as problem documents (RFC 9457).
//
// It promises that a slow or silent client holds a connection only for a bounded
// time, that the number of connections is bounded, and that a stop shows itself to
// clients only as a refused connection: requests under way get their answers until
// the drain deadline, and kept connections end with an answer that says so, unless
// they stay unused for the whole linger time. It does not limit bodies: the handlers know
// what they expect. A crash leaves nothing behind.
package httpserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"golang.org/x/net/netutil"

	"github.com/pillarbox/pillarbox/shared/logs"
)

// Config of Listen; zero values mean the defaults.
type Config struct {
	Addr          string
	HeaderTimeout time.Duration // to read the header; default 5 s
	ReadTimeout   time.Duration // to read header and body; default 15 s
	WriteTimeout  time.Duration // from the end of the header to the end of the answer; default 30 s
	IdleTimeout   time.Duration // of a kept connection between requests; default 60 s
	// LingerTimeout is how long a stop waits for the next request on kept connections, to end them with
	// its answer. To close them at once would break the requests that are on their way.
	// Default 250 ms; below zero: not at all.
	LingerTimeout  time.Duration
	DrainTimeout   time.Duration // then for requests under way; default 8 s
	MaxHeaderBytes int           // default 32 KiB
	MaxConns       int           // connections at once, more wait in the kernel; default 4,096
}

func (c Config) withDefaults() Config {
	orDuration := func(d *time.Duration, def time.Duration) {
		if *d <= 0 {
			*d = def
		}
	}
	orInt := func(n *int, def int) {
		if *n <= 0 {
			*n = def
		}
	}
	orDuration(&c.HeaderTimeout, 5*time.Second)
	orDuration(&c.ReadTimeout, 15*time.Second)
	orDuration(&c.WriteTimeout, 30*time.Second)
	orDuration(&c.IdleTimeout, 60*time.Second)
	if c.LingerTimeout == 0 {
		c.LingerTimeout = 250 * time.Millisecond
	}
	orDuration(&c.DrainTimeout, 8*time.Second)
	orInt(&c.MaxHeaderBytes, 32<<10)
	orInt(&c.MaxConns, 4096)
	return c
}

// Server is a listening server.
type Server struct {
	config   Config
	tcp      *net.TCPListener
	listener net.Listener // tcp with its limit
	server   *http.Server
	silent   *silent
	stopping atomic.Bool  // every answer ends its connection
	open     atomic.Int64 // connections
	log      *slog.Logger
}

// Listen opens the address at once, so that a bad one is a start-up error. Connections wait
// until Run. A server that is never run is closed by Close.
func Listen(c Config, h http.Handler, log *slog.Logger) (*Server, error) {
	c = c.withDefaults()
	address, err := net.ResolveTCPAddr("tcp", c.Addr)
	if err != nil {
		return nil, fmt.Errorf("listen for HTTP: %w", err)
	}
	listener, err := net.ListenTCP("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen for HTTP: %w", err)
	}
	s := &Server{
		config:   c,
		tcp:      listener,
		silent:   &silent{conns: map[net.Conn]struct{}{}},
		listener: netutil.LimitListener(listener, c.MaxConns),
		log:      log,
	}
	s.server = &http.Server{
		Handler:           s.lastAnswers(h),
		ReadHeaderTimeout: c.HeaderTimeout,
		ReadTimeout:       c.ReadTimeout,
		WriteTimeout:      c.WriteTimeout,
		IdleTimeout:       c.IdleTimeout,
		MaxHeaderBytes:    c.MaxHeaderBytes,
		ConnState:         s.watch,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	return s, nil
}

// Addr is the address it listens on.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// Close stops listening. It is for a server that Run is never called on; it does no harm afterwards.
func (s *Server) Close() error {
	if err := s.listener.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("close listener: %w", err)
	}
	return nil
}

// Run serves until ctx ends, then drains: new connections are refused, kept ones end with their next
// answer, requests under way finish to the deadline, and what is then still under way is cut off with a
// line in the log: it was the client who was slow, and no answer is out. Call it once.
func (s *Server) Run(ctx context.Context) error {
	served := make(chan error, 1)
	go func() { served <- s.server.Serve(s.listener) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve HTTP: %w", err)
	case <-ctx.Done():
	}
	s.stopping.Store(true)
	closed := s.refuse(served)
	s.linger()
	// The requests' own contexts do not descend from ctx: they end with their answer.
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.config.DrainTimeout)
	defer cancel()
	s.silent.stop()
	err := s.server.Shutdown(drain)
	if errors.Is(err, context.DeadlineExceeded) {
		s.log.WarnContext(ctx, "requests cut off at the drain deadline", logs.Address, s.Addr())
		err = s.server.Close()
	}
	if err = errors.Join(closed, err); err != nil {
		return fmt.Errorf("drain HTTP: %w", err)
	}
	return nil
}
