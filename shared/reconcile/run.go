package reconcile

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// Config of Run; zero values mean the defaults.
type Config struct {
	Window
	// Services are the subscribers to judge; empty: all. The others are asked too, since events go from one to the next.
	Services []string
	// Pauses are the times before a doubt is asked about again; after the last one it is a finding.
	Pauses []time.Duration
}

// maxDoubts is how many doubts are kept before they are asked about again.
const maxDoubts = 10_000

// StoreName is under what name findings of the store itself stand.
const StoreName = "store"

func pauses() []time.Duration {
	return []time.Duration{300 * time.Millisecond, time.Second, 2 * time.Second, 3 * time.Second, 4 * time.Second}
}

// run is one run.
type run struct {
	Config
	store       Store
	subscribers []Subscriber
	report      Report
	overview    Overview
	accounts    map[string]*Account
	doubts      []doubt
}

// doubt is an event that did not fit at a subscriber ("" when nobody was asked).
type doubt struct {
	event Event
	at    string
}

// Run compares. silent are those that could not be reached. The error is that of the store: without it nothing can
// be said. A subscriber that fails is listed in the report as not answering.
func Run(ctx context.Context, c Config, store Store, subscribers []Subscriber, silent ...Silence) (Report, error) {
	if c.Pauses == nil {
		c.Pauses = pauses()
	}
	r := &run{Config: c, store: store, subscribers: subscribers, accounts: map[string]*Account{}}
	r.report = Report{At: time.Now().UTC(), Since: c.Since, Order: c.Order, Silent: silent}
	if err := r.prepare(ctx); err != nil {
		return r.report, err
	}
	for after := r.overview.After; after < r.overview.UpTo; {
		page, err := store.Events(ctx, c.Window, after, r.overview.UpTo)
		if err != nil {
			return r.report, fmt.Errorf("store: events: %w", err)
		}
		if len(page) == 0 {
			break
		}
		after = page[len(page)-1].Seq
		r.report.Events += len(page)
		if err := r.page(ctx, page); err != nil {
			return r.report, err
		}
	}
	if err := r.settleDoubts(ctx); err != nil {
		return r.report, err
	}
	if err := r.extras(ctx); err != nil {
		return r.report, err
	}
	return r.finish(), nil
}

func (r *run) prepare(ctx context.Context) (err error) {
	if r.overview, err = r.store.Overview(ctx, r.Window); err != nil {
		return fmt.Errorf("store: %w", err)
	}
	r.report.Waiting, r.report.Refused = r.overview.Waiting, r.overview.Refused
	for _, id := range r.overview.Strays {
		r.report.add(KindStray, StoreName, Item{Event: id})
	}
	for _, name := range r.overview.Consumers {
		known := slices.ContainsFunc(r.subscribers, func(s Subscriber) bool { return s.Name() == name })
		if !known && r.judged(name) {
			r.report.silent(name, "it is registered with the store, and no admin port that was asked has it")
		}
	}
	for _, name := range r.Services {
		if name != StoreName && !slices.ContainsFunc(r.subscribers, func(s Subscriber) bool { return s.Name() == name }) {
			r.report.silent(name, "no admin port that was asked has it")
		}
	}
	for _, s := range r.subscribers {
		if r.judged(s.Name()) {
			r.accounts[s.Name()] = &Account{Service: s.Name(), Events: map[Standing]int{}}
		}
	}
	for after := ""; ; {
		page, err := r.store.Orders(ctx, r.Window, after)
		if err != nil {
			return fmt.Errorf("store: orders: %w", err)
		}
		r.report.Orders += page.Checked
		for _, b := range page.Broken {
			r.report.add(KindVersions, StoreName, Item{Order: b.Order, Note: b.Problem})
		}
		if after = page.Next; after == "" {
			return nil
		}
	}
}

// judged reports whether a subscriber's findings count.
func (r *run) judged(name string) bool {
	return len(r.Services) == 0 || slices.Contains(r.Services, name)
}

// page asks everybody about a page of events, and keeps what does not fit.
func (r *run) page(ctx context.Context, events []Event) error {
	view, err := r.look(ctx, events)
	if err != nil {
		return err
	}
	for _, e := range events {
		for _, v := range view.verdicts(r, e) {
			if v.fits() {
				r.count(e, v)
			} else {
				r.doubts = append(r.doubts, doubt{e, v.at})
			}
		}
	}
	if len(r.doubts) >= maxDoubts {
		return r.settleDoubts(ctx)
	}
	return nil
}

// settleDoubts asks about the doubts again, and makes findings of those that stay.
func (r *run) settleDoubts(ctx context.Context) error {
	for n := 0; len(r.doubts) > 0; n++ {
		if n < len(r.Pauses) {
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(r.Pauses[n]):
			}
		}
		again := r.doubts
		r.doubts = nil
		for part := range slices.Chunk(again, MaxEvents) {
			if err := r.again(ctx, part, n >= len(r.Pauses)-1); err != nil {
				return err
			}
		}
	}
	return nil
}

// again asks about doubts; last makes findings of them.
func (r *run) again(ctx context.Context, doubts []doubt, last bool) error {
	var events []Event
	asked := map[string]map[string]bool{} // by event, the subscribers in doubt
	for _, d := range doubts {
		if asked[d.event.ID] == nil {
			asked[d.event.ID] = map[string]bool{}
			events = append(events, d.event)
		}
		asked[d.event.ID][d.at] = true
	}
	view, err := r.look(ctx, events)
	if err != nil {
		return err
	}
	for _, e := range events {
		found := false
		for _, v := range view.verdicts(r, e) {
			switch {
			case !asked[e.ID][v.at]: // it fitted before
			case v.fits():
				r.count(e, v)
			case !last:
				r.doubts = append(r.doubts, doubt{e, v.at})
			case v.kind == KindUnpublished && found: // one finding, not one for each subscriber
			default:
				found = found || v.kind == KindUnpublished
				r.report.add(v.kind, v.service(), Item{Event: e.ID, Order: e.Order, Version: e.Version, Note: v.note})
			}
		}
	}
	return nil
}

func (r *run) count(e Event, v verdict) {
	if a := r.accounts[v.at]; a != nil {
		a.Events[v.standing]++
	}
	if v.standing == Assumed {
		r.report.add(KindAssumed, v.at, Item{Event: e.ID, Order: e.Order, Version: e.Version, Note: v.note})
	}
}

// mute takes a subscriber that failed out of the run.
func (r *run) mute(s Subscriber, err error) {
	if r.judged(s.Name()) {
		r.report.silent(s.Name(), err.Error())
	}
	delete(r.accounts, s.Name())
	r.subscribers = slices.DeleteFunc(slices.Clone(r.subscribers), func(o Subscriber) bool { return o.Name() == s.Name() })
}

func (r *run) finish() Report {
	r.report.Subscribers = []Account{}
	for _, s := range r.subscribers {
		if a := r.accounts[s.Name()]; a != nil {
			r.report.Subscribers = append(r.report.Subscribers, *a)
		}
	}
	slices.SortFunc(r.report.Subscribers, func(a, b Account) int {
		if a.Service < b.Service {
			return -1
		}
		return 1
	})
	if r.report.Findings == nil {
		r.report.Findings = []Finding{}
	}
	if r.report.Silent == nil {
		r.report.Silent = []Silence{}
	}
	r.report.sort()
	return r.report
}
