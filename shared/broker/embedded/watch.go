package embedded

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

const (
	watchEvery = time.Second
	// brokenLooks in a row make the server a broken one.
	brokenLooks = 3
)

// Watch returns an error when the server has become useless, and nil when ctx
// ends. After a failed write or fsync, or a full disk, a stream takes nothing more
// (publishers see only time-outs) until a new start reads what really is on disk.
// So the process has to end: what it confirmed is safe, the rest is published again.
func (s *Server) Watch(ctx context.Context) error {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for looks := 0; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		reason := s.broken()
		if reason == "" {
			looks = 0
			continue
		}
		if looks++; looks == brokenLooks && ctx.Err() == nil {
			return fmt.Errorf("the broker's store does not work any more (nothing that was accepted is lost; start again): %s", reason)
		}
	}
}

// broken says what only a new start can mend. Other complaints of the server, such
// as a folder that is no stream, were there at its start and would be again.
func (s *Server) broken() string {
	for _, e := range s.Healthz(&server.HealthzOptions{Details: true}).Errors {
		if e.Type == server.HealthzErrorJetStream || strings.Contains(e.Error, "write error") {
			return e.Error
		}
	}
	return ""
}
