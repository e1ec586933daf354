// Package reconcile proves conservation on a deployment: every event of the
// store is published or about to be, and for each subscriber it is exactly one
// of done, parked, waiting, dead, in flight and not yet delivered.
//
// Nobody reads another's tables. The store gives its events page by page and says
// where each one is on its way (Store); each subscriber says what it knows of
// given events (Subscriber); Run asks and compares. Both sides are served at the
// admin port (StoreHandler, SubscriberHandler) and asked through it (Dial), or
// called directly where one process has the tables.
//
// It takes no lock and stops nothing, so what it sees are moments. What does not
// fit is asked again for some seconds before it counts as a finding, and what
// moves is in flight, not lost. It promises to name what is broken for good. It
// does not promise to see what was broken and mended in between, nor events
// younger than its own start. It changes nothing, so a crash leaves nothing.
package reconcile

import (
	"context"
	"errors"
	"time"
)

const (
	// MaxEvents is the most events of one page and of one question.
	MaxEvents = 250
	// MaxNamed is how many ids a report names of one kind at one service.
	MaxNamed = 100
)

// ErrInvalid: the question cannot be answered as it was asked.
var ErrInvalid = errors.New("invalid")

// Event is one event of the store's history.
type Event struct {
	Seq     int64     `json:"seq"` // events.seq, by which the store pages
	ID      string    `json:"id"`
	Order   string    `json:"order"`
	Version int64     `json:"version"`
	At      time.Time `json:"at"` // when it was written down
}

// Window narrows what is looked at.
type Window struct {
	Since time.Time `json:"since,omitzero"`
	Order string    `json:"order,omitempty"`
}

// Store is the account of the service that has the events. shared/outbox implements it.
type Store interface {
	Overview(ctx context.Context, w Window) (Overview, error)
	// Events is the page of events after a seq, up to another one.
	Events(ctx context.Context, w Window, after, upTo int64) ([]Event, error)
	// Orders checks the versions of the orders after an id against their events.
	Orders(ctx context.Context, w Window, after string) (OrderPage, error)
	// Places says where events are on their way to a subscriber; without one, only whether they were published.
	Places(ctx context.Context, subscriber string, events []Event) ([]Place, error)
	// Unknown returns those of ids that are no event of this store.
	Unknown(ctx context.Context, ids []string) ([]string, error)
}

// Overview is what the store says of itself first.
type Overview struct {
	UpTo       int64     `json:"up_to"` // the last events.seq
	After      int64     `json:"after"` // the events of the window come after this one
	Consumers  []string  `json:"consumers"`
	Horizon    time.Time `json:"horizon"` // of events since then it knows whether they were published
	Sequential []string  `json:"sequential,omitempty"`
	Waiting    int64     `json:"waiting"` // rows of the outbox
	Refused    int64     `json:"refused"` // those of them that the broker refuses for ever
	// Strays are rows of the outbox whose events do not exist.
	Strays []string `json:"strays,omitempty"`
}

// OrderPage is the result for some orders.
type OrderPage struct {
	Checked int           `json:"checked"`
	Broken  []BrokenOrder `json:"broken,omitempty"`
	Next    string        `json:"next,omitempty"` // after which order to go on; empty at the end
}

// BrokenOrder is an order whose events are not its versions 1, 2, 3 … without a gap up to its own.
type BrokenOrder struct {
	Order   string `json:"order"`
	Problem string `json:"problem"`
}

// Place is where an event is on its way to a subscriber.
type Place string

// Places.
const (
	InOutbox    Place = "outbox"      // not published yet
	InRefill    Place = "refill"      // the stream lost it, and the relay publishes it again
	Refused     Place = "refused"     // the broker never takes it; a person must act
	Held        Place = "held"        // it waits in the outbox behind a refused one
	InStream    Place = "stream"      // not delivered yet, or not acknowledged
	OnRoute     Place = "route"       // at another subscriber, which hands it on
	Gone        Place = "gone"        // published, and neither in the stream for this subscriber nor about to be
	Unpublished Place = "unpublished" // neither in the outbox nor ever published
	Elsewhere   Place = "elsewhere"   // fan-out is sequential and the subscriber is not on the route
	Old         Place = "old"         // from before what the store remembers of publishing
	Untold      Place = "untold"      // too much is in the way to look it up
)

// Subscriber is the account of one that takes events. shared/consumer implements it for any service that uses it.
type Subscriber interface {
	Name() string
	// States says what this subscriber knows of each of the events, in their order.
	States(ctx context.Context, events []Event) (Answer, error)
	// Held is a page of the events of orders that it knows: a cursor "" begins, and is returned at the end.
	Held(ctx context.Context, w Window, cursor string) (HeldPage, error)
}

// Answer is what a subscriber knows.
type Answer struct {
	// CompleteSince: of older events its retention has removed what it knew. Zero: it keeps everything.
	CompleteSince time.Time `json:"complete_since,omitzero"`
	States        []State   `json:"states"`
}

// State is what a subscriber knows of one event.
type State struct {
	// In is where the event is; more than one is a finding.
	In []Standing `json:"in"`
	// Onward are the subscribers that get it only after this one.
	Onward []string `json:"onward,omitempty"`
	// Lane: the event has taken effect, and its order's lane stands below it.
	Lane *int64 `json:"lane,omitempty"`
	Note string `json:"note,omitempty"`
}

// Standing is one state of an event at a subscriber.
type Standing string

// Standings. The last group is what the comparison makes of None and Passed.
const (
	None     Standing = "none"     // nothing is known of it
	Passed   Standing = "passed"   // its order has gone on, and there is no effect
	Done     Standing = "done"     // it has taken effect
	Parked   Standing = "parked"   // it failed, and is tried again
	Waiting  Standing = "waiting"  // for its predecessor
	Dead     Standing = "dead"     // a person must act
	InFlight Standing = "inflight" // its effect is being finished
	Settled  Standing = "settled"  // a person dropped it, or let its order go on without it
	Exempt   Standing = "exempt"   // from before this subscriber's beginning, or its fan-out went by a route without it
	Unproven Standing = "unproven" // what would prove the effect is gone
	Assumed  Standing = "assumed"  // the subscriber took it for done without having seen it

	Removed   Standing = "removed"   // by retention
	Coming    Standing = "coming"    // not yet delivered
	Unhandled Standing = "unhandled" // the store itself still has it, refused by the broker or behind such a one
	Doubtful  Standing = "doubtful"  // it cannot be told now
)

// HeldEvent is an event of an order that a subscriber knows.
type HeldEvent struct {
	ID      string `json:"id"`
	Order   string `json:"order"`
	Version int64  `json:"version"`
}

// HeldPage is some of them.
type HeldPage struct {
	Events []HeldEvent `json:"events"`
	Next   string      `json:"next,omitempty"`
}
