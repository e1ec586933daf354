// Package httpserver serves HTTP with every timeout and limit set and answers
// errors as problem documents (RFC 9457).
//
// It promises that a slow or silent client holds a connection only for a bounded
// time, that the number of connections is bounded, and that requests under way when
// the server is stopped get their answers until the drain deadline. It does not limit
// bodies: the handlers know what they expect. A crash leaves nothing behind.
package httpserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"golang.org/x/net/netutil"

	"github.com/pillarbox/pillarbox/shared/logs"
)

// Config of Listen; zero values mean the defaults.
type Config struct {
	Addr           string
	HeaderTimeout  time.Duration // to read the header; default 5 s
	ReadTimeout    time.Duration // to read header and body; default 15 s
	WriteTimeout   time.Duration // from the end of the header to the end of the answer; default 30 s
	IdleTimeout    time.Duration // of a kept connection between requests; default 60 s
	DrainTimeout   time.Duration // for requests under way at the stop; default 8 s
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
	orDuration(&c.DrainTimeout, 8*time.Second)
	orInt(&c.MaxHeaderBytes, 32<<10)
	orInt(&c.MaxConns, 4096)
	return c
}

// Server is a listening server.
type Server struct {
	config   Config
	listener net.Listener
	server   *http.Server
	silent   *silent
	log      *slog.Logger
}

// Listen opens the address at once, so that a bad one is a start-up error. Connections wait
// until Run. A server that is never run is closed by Close.
func Listen(c Config, h http.Handler, log *slog.Logger) (*Server, error) {
	c = c.withDefaults()
	listener, err := net.Listen("tcp", c.Addr)
	if err != nil {
		return nil, fmt.Errorf("listen for HTTP: %w", err)
	}
	quiet := &silent{conns: map[net.Conn]struct{}{}}
	return &Server{
		config:   c,
		silent:   quiet,
		listener: netutil.LimitListener(listener, c.MaxConns),
		log:      log,
		server: &http.Server{
			Handler:           h,
			ReadHeaderTimeout: c.HeaderTimeout,
			ReadTimeout:       c.ReadTimeout,
			WriteTimeout:      c.WriteTimeout,
			IdleTimeout:       c.IdleTimeout,
			MaxHeaderBytes:    c.MaxHeaderBytes,
			ConnState:         quiet.watch,
			ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		},
	}, nil
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

// Run serves until ctx ends, then drains: requests under way finish to the deadline, and what is
// then still under way is cut off with a line in the log: it was the client who was slow, and no answer
// is out. Call it once.
func (s *Server) Run(ctx context.Context) error {
	served := make(chan error, 1)
	go func() { served <- s.server.Serve(s.listener) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve HTTP: %w", err)
	case <-ctx.Done():
	}
	// The requests' own contexts do not descend from ctx: they end with their answer.
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.config.DrainTimeout)
	defer cancel()
	s.silent.stop()
	err := s.server.Shutdown(drain)
	if errors.Is(err, context.DeadlineExceeded) {
		s.log.WarnContext(ctx, "requests cut off at the drain deadline", logs.Address, s.Addr())
		err = s.server.Close()
	}
	<-served
	if err != nil {
		return fmt.Errorf("drain HTTP: %w", err)
	}
	return nil
}
