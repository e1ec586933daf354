package consumer

import (
	"fmt"
	"sync"
	"time"

	"github.com/pillarbox/pillarbox/shared/database"
)

// streak notices that a partner is down although each failure looks like one
// event's: many events of several orders failed one after the other, for a
// while, and none took effect in between. That is an outage: the consumer pauses.
//
//	closed ──OutageEvents of OutageOrders failed in a row, over OutageAfter──▶ tripped
//	tripped ──an event took effect──▶ closed
//	tripped ──OutageEvents more failed since the pause ended──▶ tripped again, a longer pause
//
// While it is tripped a failure burns no attempt: the event is parked for a
// moment, so that the next ones get their turn, and the orders of a group come
// in any order. So poisoned events that lie together cannot hold up good ones
// for long: those are reached, and one that succeeds closes it. Poison among
// good events never trips it. The price: where nothing else happens at all, many
// poisoned orders look like a partner that is down, and are tried again without
// becoming dead letters until one event succeeds.
type streak struct {
	events, orders int           // how many make an outage
	after          time.Duration // and over what time at least

	mu      sync.Mutex // guards all below
	failed  int
	seen    map[string]bool // their orders, at most as many as count
	since   time.Time       // of the first of them
	tripped bool
}

// fail counts a failure. suspect: it burns no attempt. trip: it is an outage now.
func (s *streak) fail(order string, now time.Time) (suspect, trip bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed == 0 {
		s.since = now
	}
	s.failed++
	if s.seen == nil {
		s.seen = map[string]bool{}
	}
	if len(s.seen) < s.orders {
		s.seen[order] = true
	}
	trip = s.failed >= s.events && (s.tripped || len(s.seen) >= s.orders && now.Sub(s.since) >= s.after)
	if trip {
		s.tripped, s.failed = true, 0
	}
	return s.tripped, trip
}

// succeed ends it: something works.
func (s *streak) succeed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed, s.tripped = 0, false
	clear(s.seen)
}

// suspect counts a transient failure of i and tells whether it may be everybody's. down is the outage that it
// completes. A failure that the database pins on the data, or that a person asked for, says nothing of others.
func (c *Consumer) suspect(i *item, cause error) (suspect bool, down error) {
	class := databaseClass(cause)
	if i.last || Classify(cause) != Transient || class == database.ClassData || class == database.ClassUnique {
		return false, nil
	}
	suspect, trip := c.streak.fail(i.Subject, time.Now())
	if trip {
		c.metrics.trips.Inc()
		down = fmt.Errorf("%d events and more failed in a row and none took effect, the last: %w", c.OutageEvents, cause)
	}
	return suspect, down
}
