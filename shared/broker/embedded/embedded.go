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

// Server is a running embedded server. It satisfies nats.InProcessConnProvider.
type Server struct {
	*server.Server
	token string
}

// Start starts a server that fsyncs every write (sync_interval always), waits until it takes
// connections and never handles signals.
func Start(ctx context.Context, c Config, log *slog.Logger) (*Server, error) {
	if c.Dir == "" {
		return nil, errors.New("start embedded broker: no folder given")
	}
	if log == nil {
		log = logs.Discard()
	}
	s, err := server.NewServer(c.options())
	if err != nil {
		return nil, fmt.Errorf("start embedded broker: %w", err)
	}
	adapter := &logAdapter{log: log}
	s.SetLoggerV2(adapter, false, false, false)
	s.Start()
	if err := awaitReady(ctx, s, adapter); err != nil {
		s.Shutdown()
		s.WaitForShutdown()
		return nil, fmt.Errorf("start embedded broker: %w", err)
	}
	return &Server{Server: s, token: c.Token}, nil
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
func (s *Server) Token() string { return s.token }

// Stop shuts the server down and waits. Close connections first.
func (s *Server) Stop() {
	s.Shutdown()
	s.WaitForShutdown()
}
