// Package embedded runs a NATS server with JetStream inside the process. Only
// the suite and tests import it, so that service binaries stay small.
//
// It promises that what it confirmed is on disk, and that it never handles
// signals. It takes no lock on its folder: whoever starts it makes sure that no
// second server works there. A crash leaves a folder that the next Start takes over.
package embedded

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/pillarbox/pillarbox/shared/logs"
)

const (
	startTimeout    = 20 * time.Second // recovering a big folder takes a while
	readyPoll       = 50 * time.Millisecond
	defaultMaxStore = 4 << 30
	maxMemory       = 64 << 20 // JetStream memory streams: we use none
	maxPayload      = 1 << 20
	maxPending      = 64 << 20 // per connection
	writeDeadline   = 10 * time.Second
	authTimeout     = 5.0 // seconds; the default 2 are short on a busy laptop
	defaultHost     = "127.0.0.1"
	serverName      = "pillarbox"
)

// Config of Start.
type Config struct {
	Dir        string // JetStream store; required
	Host       string // default 127.0.0.1
	Port       int    // 0: a free one
	Token      string // required of every client when set
	MaxStore   int64  // bytes; default 4 GiB
	DontListen bool   // only in-process connections
}

// Server is a running embedded server. It satisfies nats.InProcessConnProvider, also when it has started anew.
type Server struct {
	config  Config
	log     *slog.Logger
	running atomic.Pointer[server.Server]
}

// Start starts a server that fsyncs every write (sync_interval always), waits
// until it takes connections and never handles signals.
func Start(ctx context.Context, c Config, log *slog.Logger) (*Server, error) {
	if c.Dir == "" {
		return nil, errors.New("start embedded broker: no folder given")
	}
	if log == nil {
		log = logs.Discard()
	}
	s := &Server{config: c, log: log}
	if err := s.launch(ctx); err != nil {
		return nil, err
	}
	if address, ok := s.Addr().(*net.TCPAddr); ok {
		s.config.Port = address.Port // also after a new start
	}
	return s, nil
}

func (s *Server) launch(ctx context.Context) error {
	next, err := server.NewServer(s.config.options())
	if err != nil {
		return fmt.Errorf("start embedded broker: %w", err)
	}
	adapter := &logAdapter{log: s.log}
	next.SetLoggerV2(adapter, false, false, false)
	next.Start()
	if err := awaitReady(ctx, next, adapter); err != nil {
		next.Shutdown()
		next.WaitForShutdown()
		return fmt.Errorf("start embedded broker: %w", err)
	}
	s.running.Store(next)
	return nil
}

func (c Config) options() *server.Options {
	o := &server.Options{
		ServerName:         serverName,
		Host:               c.Host,
		Port:               c.Port,
		Authorization:      c.Token,
		AuthTimeout:        authTimeout,
		DontListen:         c.DontListen,
		JetStream:          true,
		StoreDir:           c.Dir,
		SyncAlways:         true,
		JetStreamMaxStore:  c.MaxStore,
		JetStreamMaxMemory: maxMemory,
		MaxPayload:         maxPayload,
		MaxPending:         maxPending,
		WriteDeadline:      writeDeadline,
		NoSigs:             true, // or the server exits the process on SIGTERM
	}
	if o.Host == "" {
		o.Host = defaultHost
	}
	if o.Port == 0 {
		o.Port = server.RANDOM_PORT
	}
	if o.JetStreamMaxStore == 0 {
		o.JetStreamMaxStore = defaultMaxStore
	}
	return o
}

// awaitReady returns when s takes connections, or why it never will.
func awaitReady(ctx context.Context, s *server.Server, log *logAdapter) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("wait until ready: %w", err)
		}
		if reason := log.fatal(); reason != "" {
			return errors.New(reason)
		}
		if s.ReadyForConnections(readyPoll) && s.JetStreamEnabled() {
			return nil
		}
		if !s.Running() {
			return errors.New("server stopped")
		}
	}
}

// Token is what clients need, also those in the process.
func (s *Server) Token() string { return s.config.Token }

// ClientURL is where clients of other processes connect.
func (s *Server) ClientURL() string { return s.running.Load().ClientURL() }

// Addr is the address that it listens on, or nil.
func (s *Server) Addr() net.Addr { return s.running.Load().Addr() }

// NumClients is the number of its connections.
func (s *Server) NumClients() int { return s.running.Load().NumClients() }

// InProcessConn implements nats.InProcessConnProvider.
func (s *Server) InProcessConn() (net.Conn, error) { return s.running.Load().InProcessConn() }

// Stop shuts the server down and waits. Close connections first, and let Run return.
func (s *Server) Stop() {
	running := s.running.Load()
	running.Shutdown()
	running.WaitForShutdown()
}
