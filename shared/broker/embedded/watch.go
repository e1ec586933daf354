package embedded

import (
	"context"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/pillarbox/pillarbox/shared/logs"
)

const (
	watchEvery = time.Second
	// brokenLooks in a row make the server a broken one.
	brokenLooks            = 3
	restartMin, restartMax = 200 * time.Millisecond, 5 * time.Second
)

// Run watches the server until ctx ends, and starts it anew when it has become
// useless: after a failed write or fsync, or a full disk, a stream takes nothing
// more (publishers see only time-outs) until a new start reads what really is on
// disk. What was confirmed is safe, and the rest is published again. While that
// does not succeed it tries on: its clients reconnect as to any server.
func (s *Server) Run(ctx context.Context) error {
	for {
		reason := s.watch(ctx)
		if reason == "" {
			return nil
		}
		s.log.ErrorContext(ctx, "the broker's store does not work any more and starts anew; nothing that was accepted is lost",
			logs.Reason, reason)
		if !s.startAnew(ctx) {
			return nil
		}
	}
}

// startAnew tries until it succeeds; false means that ctx has ended.
func (s *Server) startAnew(ctx context.Context) bool {
	s.Stop()
	pauses := backoff.NewExponentialBackOff()
	pauses.InitialInterval, pauses.MaxInterval = restartMin, restartMax
	for {
		err := s.launch(ctx)
		if err == nil {
			s.log.InfoContext(ctx, "the broker has started anew")
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		s.log.WarnContext(ctx, "the broker does not start", logs.Error, err)
		select {
		case <-ctx.Done():
			return false
		case <-time.After(pauses.NextBackOff()):
		}
	}
}

// watch returns why the server has become useless, or nothing when ctx ends.
func (s *Server) watch(ctx context.Context) string {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for looks := 0; ; {
		select {
		case <-ctx.Done():
			return ""
		case <-tick.C:
		}
		reason := s.broken()
		if reason == "" {
			looks = 0
			continue
		}
		if looks++; looks == brokenLooks && ctx.Err() == nil {
			return reason
		}
	}
}

// broken says what only a new start can mend. Other complaints of the server, such
// as a folder that is no stream, were there at its start and would be again.
func (s *Server) broken() string {
	for _, e := range s.running.Load().Healthz(&server.HealthzOptions{Details: true}).Errors {
		if e.Type == server.HealthzErrorJetStream || strings.Contains(e.Error, "write error") {
			return e.Error
		}
	}
	return ""
}
