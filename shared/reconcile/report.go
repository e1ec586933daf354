package reconcile

import (
	"cmp"
	"slices"
	"time"
)

// Kind is what is wrong with something.
type Kind string

// Kinds of findings.
const (
	KindUnpublished Kind = "unpublished" // an event that is neither in the outbox nor was ever published
	KindLost        Kind = "lost"        // an event that nobody holds for a subscriber
	KindNoEffect    Kind = "no-effect"   // an event whose order has gone on at a subscriber without its effect
	KindUnproven    Kind = "unproven"    // an effect of which the proof is gone
	KindTwice       Kind = "twice"       // an event in two states at one subscriber
	KindExtra       Kind = "extra"       // a state for an event that the store does not have
	KindLane        Kind = "lane"        // a lane below an event of the order that has taken effect
	KindVersions    Kind = "versions"    // an order whose events are not its versions, each once
	KindAssumed     Kind = "assumed"     // no finding: see Report.Assumed
	KindStray       Kind = "stray"       // a row of the outbox without an event
)

// Means says what a kind of finding is, and what to do.
func (k Kind) Means() string {
	return map[Kind]string{
		KindUnpublished: "not in the outbox and never published: subscribers never get it (suite parked fill, or put the outbox row back)",
		KindLost:        "neither taken effect, parked, dead nor on its way to this subscriber",
		KindNoEffect:    "its order has gone on here, and its effect is missing",
		KindUnproven:    "no proof that it took effect: published just before a crash and taken away, or removed by hand",
		KindTwice:       "in two states at once",
		KindExtra:       "known here, and not among the store's events: the store's database may be an older copy",
		KindLane:        "it took effect, and its order's lane stands below it: it would take effect again, or later ones wait for ever",
		KindVersions:    "the order's events are not its versions 1, 2, 3 … each once",
		KindAssumed:     "taken for published after a crash since the staged file was gone; removed by hand it would look the same",
		KindStray:       "a row of the outbox whose event is gone: the relay stops at it",
	}[k]
}

// Item is one thing that is broken.
type Item struct {
	Event   string `json:"event,omitempty"`
	Order   string `json:"order,omitempty"`
	Version int64  `json:"version,omitempty"`
	Note    string `json:"note,omitempty"`
}

// Finding is all of one kind at one service.
type Finding struct {
	Kind    Kind   `json:"kind"`
	Service string `json:"service"`
	Count   int    `json:"count"`
	Items   []Item `json:"items"` // the first MaxNamed
}

// Silence is somebody who could not be asked.
type Silence struct {
	Who string `json:"who"`
	Why string `json:"why"`
}

// Account is what one subscriber came to.
type Account struct {
	Service       string           `json:"service"`
	Events        map[Standing]int `json:"events"`
	CompleteSince time.Time        `json:"complete_since,omitzero"`
}

// Report is the result of a run.
type Report struct {
	At          time.Time `json:"at"`
	Since       time.Time `json:"since,omitzero"`
	Order       string    `json:"order,omitempty"`
	Events      int       `json:"events"`
	Orders      int       `json:"orders"`
	Waiting     int64     `json:"outbox_waiting"`
	Refused     int64     `json:"outbox_refused"`
	Subscribers []Account `json:"subscribers"`
	Findings    []Finding `json:"findings"`
	// Assumed are effects that a subscriber took for done without having seen them, which a crash can make right: named, and no finding.
	Assumed []Finding `json:"assumed,omitempty"`
	Silent  []Silence `json:"not_answered"`
}

// Total is how many things are broken.
func (r Report) Total() (n int) {
	for _, f := range r.Findings {
		n += f.Count
	}
	return n
}

// add files a broken thing.
func (r *Report) add(kind Kind, service string, item Item) {
	list := &r.Findings
	if kind == KindAssumed {
		list = &r.Assumed
	}
	at := slices.IndexFunc(*list, func(f Finding) bool { return f.Kind == kind && f.Service == service })
	if at < 0 {
		at = len(*list)
		*list = append(*list, Finding{Kind: kind, Service: service})
	}
	f := &(*list)[at]
	if f.Count++; len(f.Items) < MaxNamed {
		f.Items = append(f.Items, item)
	}
}

// silent notes who could not be asked, once.
func (r *Report) silent(who, why string) {
	if !slices.ContainsFunc(r.Silent, func(s Silence) bool { return s.Who == who }) {
		r.Silent = append(r.Silent, Silence{who, why})
	}
}

func (r *Report) sort() {
	slices.SortFunc(r.Findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.Kind, b.Kind))
	})
	for _, f := range r.Findings {
		slices.SortFunc(f.Items, func(a, b Item) int {
			return cmp.Or(cmp.Compare(a.Order, b.Order), cmp.Compare(a.Version, b.Version), cmp.Compare(a.Event, b.Event))
		})
	}
}
