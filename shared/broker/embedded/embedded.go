// Package embedded runs a NATS server with JetStream inside the process. Only
// the suite and tests import it, so that service binaries stay small.
package embedded

import (
	"context"
	"log/slog"

	"github.com/nats-io/nats-server/v2/server"
)

// Config of Start.
type Config struct {
	Dir      string // JetStream store; required
	Host     string // default 127.0.0.1
	Port     int    // 0: a free one
	Token    string // required of every client when set
	MaxStore int64  // bytes; default 4 GiB
}

// Server is a running embedded server. It satisfies nats.InProcessConnProvider.
type Server struct{ *server.Server }

// Start starts a server that fsyncs every write (sync_interval always), waits until it takes
// connections and never handles signals.
func Start(ctx context.Context, c Config, log *slog.Logger) (*Server, error) { panic("skeleton") }

// Stop shuts the server down and waits.
func (s *Server) Stop() { panic("skeleton") }
