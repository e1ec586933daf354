package consumer

import (
	"cmp"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/events"
)

// item is one event on its way through a group.
type item struct {
	Event
	// copies are the messages to settle; none when the event came from a row.
	copies []*message.Message
	// from is where a stored event came from.
	from origin
	// route is whom it goes to, this consumer first; empty when it came to all at once.
	route events.Route
	// stored: it came from a row of parked, which goes when the event took effect.
	stored bool
	// retry: the sweep claimed it, so its own row does not hold it back.
	retry bool
	// gone: its message was acknowledged before the effect, so a failure loses it.
	gone bool
	// attempts that failed before.
	attempts int
	// sourced is when its message came into the stream, the youngest copy's; zero of a replay.
	sourced time.Time
	// handled: it has no lane since that was removed; forgotten: its order has none for that reason, and it is new.
	handled, forgotten bool
	// early: from before the consumer's beginning, so that the effect does not see it.
	early bool
	// last: another failure is final, since a person asked for this attempt.
	last bool
}

// origin is how an event's message came: its topic, and its headers as JSON.
type origin struct{ topic, headers string }

// origin is taken from the message while there is one.
func (i *item) origin() origin {
	from := i.from
	for _, m := range i.copies {
		if info, ok := broker.InfoOf(m); ok {
			from = origin{clean(info.Subject, maxText), headersText(info.Headers)}
			break
		}
	}
	from.headers = withRoute(cmp.Or(from.headers, "{}"), i.route)
	return from
}

// row is what a group knows of an event in parked, without its bytes.
type row struct {
	eventID  string
	orderID  string
	version  int64
	state    string
	size     int64
	attempts int
	sequence uint64
}

// States of parked rows.
const (
	stateWaiting = "waiting" // for its predecessor
	stateParked  = "parked"  // for another attempt
	stateDead    = "dead"    // for a person; it holds its order
)

// position is what the database says of the orders of a group: each lane's
// version (absent: 0) and the rows above it.
type position struct {
	lanes map[string]int64
	rows  map[string][]row // by order, sorted by version
}

// at returns the row at a version of an order; of several the one that holds.
func (p position) at(order string, version int64) (row, bool) {
	var found row
	var ok bool
	for _, r := range p.rows[order] {
		if r.version == version && (!ok || r.state != stateWaiting) {
			found, ok = r, true
		}
	}
	return found, ok
}

func (p position) has(order, eventID string) bool {
	return slices.ContainsFunc(p.rows[order], func(r row) bool { return r.eventID == eventID })
}

// plan is what becomes of a group's events.
type plan struct {
	due, duplicates []*item
	wait            []*item          // a row is to be written
	held            []*item          // a row stands already: nothing to do
	lanes           map[string]int64 // of the orders that advance
	next            []string         // orders whose next event is a waiting row
}

// decide says for each event what it is, given the lanes. may tells whether an
// event may be due (whether it was prepared). items must be sorted by order and
// version; every order of the group that has no item stands in extra.
func decide(p position, items []*item, extra []string, may func(id string) bool) plan {
	out := plan{lanes: map[string]int64{}}
	for rest := items; len(rest) > 0; {
		order := rest[0].Subject
		n := slices.IndexFunc(rest, func(i *item) bool { return i.Subject != order })
		if n < 0 {
			n = len(rest)
		}
		out.order(p, order, rest[:n], may)
		rest = rest[n:]
	}
	for _, order := range extra {
		out.order(p, order, nil, may)
	}
	return out
}

func (out *plan) order(p position, order string, items []*item, may func(id string) bool) {
	lane := p.lanes[order]
	at := lane
	follows := false // whether an event that waits now stands at at+1
	for _, i := range items {
		switch {
		case i.Version <= at, i.handled:
			out.duplicates = append(out.duplicates, i)
		case i.Version == at+1 && free(p, i) && may(i.ID):
			out.due = append(out.due, i)
			at++
			follows = false
		default:
			follows = follows || i.Version == at+1
			if i.stored || p.has(order, i.ID) {
				out.held = append(out.held, i)
			} else {
				out.wait = append(out.wait, i)
			}
		}
	}
	if at > lane {
		out.lanes[order] = at
	}
	r, stands := p.at(order, at+1)
	if stands && r.state != stateWaiting {
		return // held: only the sweep or a person may go on
	}
	if stands || follows {
		out.next = append(out.next, order)
	}
}

// free reports whether no failed event stands where i would take effect, except
// i's own attempt.
func free(p position, i *item) bool {
	r, stands := p.at(i.Subject, i.Version)
	if !stands || r.state == stateWaiting {
		return true
	}
	return i.retry && r.eventID == i.ID && r.state == stateParked
}

// chain returns the waiting rows that would be due together with items: those
// without a gap from the lane on, at most room of them and size bytes.
func chain(p position, items []*item, orders []string, room int, size int64) []row {
	here := map[string]map[int64]*item{}
	for _, i := range items {
		if here[i.Subject] == nil {
			here[i.Subject] = map[int64]*item{}
		}
		here[i.Subject][i.Version] = i
	}
	var out []row
	for _, order := range orders {
		for v := p.lanes[order] + 1; ; v++ {
			if i := here[order][v]; i != nil {
				if !free(p, i) {
					break
				}
				continue
			}
			r, ok := p.at(order, v)
			if !ok || r.state != stateWaiting || room <= 0 || len(out) > 0 && size < r.size {
				break
			}
			out = append(out, r)
			room--
			size -= r.size
		}
	}
	return out
}

// inOrder sorts by order and version and folds copies of one event into one item.
func inOrder(items []*item) []*item {
	seen := make(map[string]*item, len(items))
	out := make([]*item, 0, len(items))
	for _, i := range items {
		if first := seen[i.ID]; first != nil {
			first.copies = append(first.copies, i.copies...)
			if i.stored && !first.stored {
				first.stored, first.attempts, first.from = true, i.attempts, i.from
			}
			first.last = first.last || i.last
			if i.sourced.After(first.sourced) {
				first.sourced = i.sourced
			}
			first.route = first.route.With(i.route)
			first.gone = first.gone || i.gone
			continue
		}
		seen[i.ID] = i
		out = append(out, i)
	}
	slices.SortFunc(out, func(a, b *item) int {
		return cmp.Or(cmp.Compare(a.Subject, b.Subject), cmp.Compare(a.Version, b.Version), cmp.Compare(a.ID, b.ID))
	})
	return out
}

func ordersOf(items []*item) []string {
	out := make([]string, 0, len(items))
	for _, i := range items {
		if len(out) == 0 || out[len(out)-1] != i.Subject {
			out = append(out, i.Subject)
		}
	}
	return out
}

func eventsOf(items []*item) []Event {
	if len(items) == 0 {
		return nil
	}
	out := make([]Event, len(items))
	for n, i := range items {
		out[n] = i.Event
	}
	return out
}
