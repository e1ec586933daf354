package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/events"
	"github.com/pillarbox/pillarbox/shared/logs"
)

// Events go to all consumers at once, or with Config.Sequential to the first one of the route, and from each to the
// next. Only the relay knows; consumers do what a message's route says, so the mode may change while messages wait.
//
// On a route an event is in the stream once for each step that it has made, until the purge comes by, and a consumer
// that cannot hand an event on does not acknowledge it. A stream that the relay has filled to the brim would
// therefore stand still for ever. So the relay takes only its share of the stream, and keeps the rest for the steps of what it
// has published: also after a change to the parallel mode, until nothing is under way on a route.

const (
	// stepOverhead is what a message takes in the stream besides its payload, about.
	stepOverhead = 300
	// roomPerStep is the least size of a stream per consumer on the route: a few events of the largest kind.
	roomPerStep = 4 << 20
)

// topic is where events are published.
func (c Config) topic() string {
	if c.Sequential {
		return events.RouteTopic(c.Route[0])
	}
	return c.Topic
}

// checkRoute reports what is wrong with the route.
func (c Config) checkRoute() error {
	if _, err := events.ParseRoute(c.Route.String()); err != nil {
		return err
	}
	switch {
	case !c.Sequential:
		return nil
	case len(c.Route) == 0:
		return errors.New("sequential fan-out needs a route")
	case c.Stream != events.StreamOrders:
		return errors.New("routes are topics of the stream " + events.StreamOrders)
	case c.MaxBytes < int64(len(c.Route))*roomPerStep:
		return fmt.Errorf("a stream for a route of %d must have at least %d bytes", len(c.Route), len(c.Route)*roomPerStep)
	}
	return nil
}

// message is an event as it goes to the consumers.
func (l *leader) message(i item) *message.Message {
	m := i.message()
	if l.r.c.Sequential {
		m.Metadata.Set(events.HeaderRoute, l.r.c.Route.String())
	}
	return m
}

// share is how many bytes of the stream the relay may fill; the rest is for steps. What is handed on has some more
// headers than what was published, hence the three quarters.
func (l *leader) share() int64 {
	if !l.onRoutes || len(l.r.c.Route) == 0 {
		return l.r.c.MaxBytes
	}
	n := int64(len(l.r.c.Route))
	return max(l.r.c.MaxBytes/4*3/n-events.MaxSize, l.r.c.MaxBytes/4/n)
}

// budget returns how many bytes the next page may have, or ErrFull. It counts what was published since the stream
// was last looked at; what consumers hand on meanwhile is in the share of its first step.
func (l *leader) budget(ctx context.Context) (int64, error) {
	if !l.onRoutes {
		return maxBytes, nil // the broker refuses what is too much
	}
	left := l.share() - l.held
	if left < l.share()/4 {
		stream, err := l.r.conn.Stream(ctx, l.r.c.Stream)
		if err != nil {
			return 0, err
		}
		l.held = int64(stream.Bytes)
		left = l.share() - l.held
		l.hurryPurge()
	}
	if left <= 0 {
		return 0, fmt.Errorf("%w: the rest of it is for what is under way on routes", broker.ErrFull)
	}
	return min(left, maxBytes), nil
}

// publishedBytes counts against the share.
func (l *leader) publishedBytes(items []item, out outcome) {
	for n, r := range out.results {
		if r.sequence > 0 && !r.duplicate {
			l.held += items[n].size + stepOverhead
		}
	}
}

// lookForRoutes notes whether something that is not acknowledged is on a route, above a sequence. In the parallel
// mode that only ever ends.
func (l *leader) lookForRoutes(ctx context.Context, above uint64) error {
	if l.r.c.Sequential {
		l.onRoutes = true
		return nil
	}
	handle, err := l.r.conn.JS.Stream(ctx, l.r.c.Stream)
	if err != nil {
		return fmt.Errorf("look up stream: %w", err)
	}
	_, err = handle.GetMsg(ctx, above+1, jetstream.WithGetMsgSubject(events.RouteTopic(">")))
	l.onRoutes = err == nil
	if err != nil && !errors.Is(err, jetstream.ErrMsgNotFound) {
		return fmt.Errorf("look for routes: %w", err)
	}
	return nil
}

// checkConsumers compares the registered consumers with the route. It returns why nothing may be purged: who is on
// the route and not registered will want what is there.
func (l *leader) checkConsumers(ctx context.Context, registered map[string]seen) (blocked string) {
	if !l.r.c.Sequential {
		return ""
	}
	var idle []string
	for name := range registered {
		if !slices.Contains(l.r.c.Route, name) {
			idle = append(idle, name)
		}
	}
	slices.Sort(idle)
	if names := strings.Join(idle, ","); names != l.idle {
		l.idle = names
		if names != "" {
			l.log.WarnContext(ctx, "registered consumers are not on the route and get no new events", logs.Consumer, names,
				"route", l.r.c.Route.String())
		}
	}
	for _, name := range l.r.c.Route {
		if _, ok := registered[name]; !ok {
			return name + " is on the route and has not registered"
		}
	}
	return ""
}
