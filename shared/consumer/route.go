package consumer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/events"
	"github.com/pillarbox/pillarbox/shared/failpoint"
)

// Publisher hands events on to the next consumer of their route (broker.Publisher).
type Publisher interface {
	// PublishAll returns nil when each of messages is in the stream.
	PublishAll(ctx context.Context, topic string, messages []*message.Message) error
}

// routeTo returns the route that headers name for the consumer called name, which must come first; empty when the
// message came to all at once.
func routeTo(name string, headers map[string][]string) (events.Route, error) {
	values := headers[events.HeaderRoute]
	if len(values) == 0 {
		return nil, nil
	}
	route, err := events.ParseRoute(values[0])
	if err == nil && (len(values) > 1 || len(route) == 0 || route[0] != name) {
		err = fmt.Errorf("%w: it must be one that begins with %s", events.ErrRoute, name)
	}
	if err != nil {
		return nil, fmt.Errorf("header %s: %w", events.HeaderRoute, err)
	}
	return route, nil
}

// storedRoute is the route in headers as the tables keep them. It was checked when they were stored.
func storedRoute(headers string) (events.Route, error) {
	if !strings.Contains(headers, events.HeaderRoute) {
		return nil, nil
	}
	var h map[string][]string
	if err := json.Unmarshal([]byte(headers), &h); err != nil {
		return nil, fmt.Errorf("read stored headers: %w", err)
	}
	values := h[events.HeaderRoute]
	if len(values) == 0 {
		return nil, nil
	}
	route, err := events.ParseRoute(values[0])
	if err != nil {
		return nil, fmt.Errorf("stored header %s: %w", events.HeaderRoute, err)
	}
	return route, nil
}

// withRoute returns stored headers with the given route.
func withRoute(headers string, route events.Route) string {
	if len(route) == 0 {
		return headers
	}
	h := map[string][]string{}
	if json.Unmarshal([]byte(headers), &h) != nil || h == nil {
		h = map[string][]string{} // what is no JSON says nothing
	}
	h[events.HeaderRoute] = []string{route.String()}
	return headersText(h)
}

// next is whom the event goes to after this consumer.
func (i *item) next() events.Route {
	if len(i.route) < 2 {
		return nil
	}
	return i.route[1:]
}

// forward hands the events on and returns when the stream has them all. It may be repeated: the publish id of a step
// is always the same.
//
//	commit ─▶ Done ─▶ forward ─▶ confirmed ─▶ rows removed ─▶ acknowledged
//
// A crash before the last step leaves a message or a row, which brings the event again as one that took effect; it
// is handed on then.
func (c *Consumer) forward(ctx context.Context, items []*item) error {
	byNext := map[string][]*message.Message{}
	for _, i := range items {
		if rest := i.next(); len(rest) > 0 {
			byNext[rest[0]] = append(byNext[rest[0]], step(i, rest))
		}
	}
	if len(byNext) == 0 {
		return nil
	}
	failpoint.Hit(c.Name + ".forward_pending")
	if c.publisher == nil {
		return AsOutage(errors.New("forward: this consumer has no publisher"))
	}
	for next, messages := range byNext {
		err := c.publisher.PublishAll(ctx, events.RouteTopic(next), messages)
		if errors.Is(err, broker.ErrRefused) {
			// It took effect here; that it can never go on is for a person to see.
			return AsPermanent(fmt.Errorf("forward to %s: %w", next, err))
		}
		if err != nil {
			return AsOutage(fmt.Errorf("forward to %s: %w", next, err))
		}
		c.metrics.forwarded.Add(float64(len(messages)))
	}
	failpoint.Hit(c.Name + ".forwarded")
	return nil
}

func step(i *item, rest events.Route) *message.Message {
	m := message.NewMessage(i.ID, i.Raw)
	// The whole of what remains: one event may come on two routes after a change of the setting.
	m.Metadata.Set(broker.MetaPublishID, i.ID+"/"+rest.String())
	m.Metadata.Set(events.HeaderRoute, rest.String())
	return m
}

// onward chooses the events that are to be handed on: what takes effect now, and what did earlier, since a crash may
// have come before it was handed on. An event that the lane passed over dead goes no further.
func (c *Consumer) onward(ctx context.Context, q database.Querier, p plan) ([]*item, error) {
	due, duplicates := withNext(p.due), withNext(p.duplicates)
	if len(duplicates) == 0 {
		return due, nil
	}
	letters := make([]string, len(duplicates))
	for n, i := range duplicates {
		letters[n] = letterID(i.ID)
	}
	condition, arg := q.Dialect().AnyOf(1, letters)
	rows, err := q.QueryContext(ctx, `SELECT id FROM dead_letters WHERE id `+condition, arg)
	if err != nil {
		return nil, fmt.Errorf("look for letters: %w", err)
	}
	dead := map[string]bool{}
	err = each(rows, func() error {
		var id string
		err := rows.Scan(&id)
		dead[id] = true
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("look for letters: %w", err)
	}
	alive := slices.DeleteFunc(duplicates, func(i *item) bool { return dead[letterID(i.ID)] })
	return append(due, alive...), nil
}

func withNext(items []*item) (out []*item) {
	for _, i := range items {
		if len(i.next()) > 0 {
			out = append(out, i)
		}
	}
	return out
}

// byRoute divides ids of events into those that nobody waits for and those that are still to be handed on.
func byRoute(ids []string, onward []*item) (now, later []string) {
	waits := make(map[string]bool, len(onward))
	for _, i := range onward {
		waits[i.ID] = true
	}
	for _, id := range ids {
		if waits[id] {
			later = append(later, id)
		} else {
			now = append(now, id)
		}
	}
	return now, later
}

// joinRoutes brings together the routes of an event that stands in a row and comes again as a message, which may
// have another: the setting was changed, or the event came to all at once before.
func joinRoutes(ctx context.Context, tx *database.Tx, now position, p plan) error {
	standing := map[string][]*item{}
	for _, list := range [][]*item{p.due, p.duplicates, p.held} {
		for _, i := range list {
			if i.stored || now.has(i.Subject, i.ID) {
				standing[i.ID] = append(standing[i.ID], i)
			}
		}
	}
	if len(standing) == 0 {
		return nil
	}
	condition, arg := tx.Dialect().AnyOf(1, slices.Collect(maps.Keys(standing)))
	rows, err := tx.QueryContext(ctx, `SELECT event_id, headers FROM parked WHERE event_id `+condition, arg)
	if err != nil {
		return fmt.Errorf("read routes: %w", err)
	}
	longer := map[string]string{}
	err = each(rows, func() error {
		var id, headers string
		if err := rows.Scan(&id, &headers); err != nil {
			return err
		}
		route, _ := storedRoute(headers) // a row that cannot be read has its letter
		for _, i := range standing[id] {
			if i.route = route.With(i.route); len(i.route) > len(route) {
				longer[id] = withRoute(headers, i.route)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read routes: %w", err)
	}
	for _, i := range p.held {
		if headers, ok := longer[i.ID]; ok {
			if _, err := tx.ExecContext(ctx, `UPDATE parked SET headers = $1 WHERE event_id = $2`, headers, i.ID); err != nil {
				return fmt.Errorf("write route: %w", err)
			}
		}
	}
	return nil
}
