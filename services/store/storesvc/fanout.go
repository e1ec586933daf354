package storesvc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/pillarbox/pillarbox/shared/events"
)

// Values of Fanout.
const (
	fanoutParallel   = "parallel"
	fanoutSequential = "sequential"
)

const (
	maxRoute = 16
	// roomPerSubscriber is the least size of the stream for each subscriber on the route.
	roomPerSubscriber = 4 << 20
)

// route is FanoutRoute, which has been checked.
func (c Config) route() events.Route {
	route, err := events.ParseRoute(c.FanoutRoute)
	if err != nil {
		return nil
	}
	return route
}

func (c Config) checkFanout() error {
	var problems []error
	if c.Fanout != fanoutParallel && c.Fanout != fanoutSequential {
		problems = append(problems, errors.New("PILLARBOX_FANOUT must be parallel or sequential"))
	}
	route, err := events.ParseRoute(c.FanoutRoute)
	switch {
	case err != nil:
		problems = append(problems, fmt.Errorf("PILLARBOX_FANOUT_ROUTE must be names separated by commas: %w", err))
	case len(route) == 0 || len(route) > maxRoute:
		problems = append(problems, fmt.Errorf("PILLARBOX_FANOUT_ROUTE must be 1 to %d names", maxRoute))
	case c.Fanout == fanoutSequential && c.StreamMaxBytes < int64(len(route))*roomPerSubscriber:
		problems = append(problems, fmt.Errorf("PILLARBOX_STORE_STREAM_MAX_BYTES must be at least %d for a route of %d", len(route)*roomPerSubscriber, len(route)))
	}
	return errors.Join(problems...)
}

// logFanout says which way events go: only the store knows.
func (c Config) logFanout(ctx context.Context, log *slog.Logger) {
	if c.Fanout == fanoutSequential {
		log.InfoContext(ctx, "fan-out is sequential", "route", c.FanoutRoute)
		return
	}
	log.InfoContext(ctx, "fan-out is parallel")
}
