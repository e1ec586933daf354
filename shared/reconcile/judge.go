package reconcile

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// view is what everybody said about some events at about one moment.
type view struct {
	states map[string]map[string]State // by subscriber and event
	places map[string]map[string]Place // the same, for what the subscriber does not know; "": whether published at all
	answer map[string]Answer
}

// look asks the subscribers first and the store after them: what moves in between has then left the outbox or the stream
// for tables that were read before, which the next look shows, and never looks as if it were in two of them.
func (r *run) look(ctx context.Context, events []Event) (*view, error) {
	v := &view{states: map[string]map[string]State{}, places: map[string]map[string]Place{}, answer: map[string]Answer{}}
	for _, s := range r.subscribers {
		answer, err := s.States(ctx, events)
		if err == nil && len(answer.States) != len(events) {
			err = fmt.Errorf("it answered for %d of %d events", len(answer.States), len(events))
		}
		if err != nil {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			r.mute(s, err)
			continue
		}
		v.answer[s.Name()] = answer
		if a := r.accounts[s.Name()]; a != nil {
			a.CompleteSince = answer.CompleteSince
		}
		v.states[s.Name()] = map[string]State{}
		for n, e := range events {
			v.states[s.Name()][e.ID] = answer.States[n]
		}
	}
	for name := range r.accounts {
		if err := r.locate(ctx, v, name, events, func(e Event) bool { return v.open(name, e) }); err != nil {
			return nil, err
		}
	}
	// What some subscriber knows was published.
	return v, r.locate(ctx, v, "", events, func(e Event) bool { return !v.known(e) })
}

func (r *run) locate(ctx context.Context, v *view, subscriber string, events []Event, which func(Event) bool) error {
	events = slices.DeleteFunc(slices.Clone(events), func(e Event) bool { return !which(e) })
	if len(events) == 0 {
		return nil
	}
	places, err := r.store.Places(ctx, subscriber, events)
	if err == nil && len(places) != len(events) {
		err = fmt.Errorf("it answered for %d of %d events", len(places), len(events))
	}
	if err != nil {
		return fmt.Errorf("store: places of events: %w", err)
	}
	v.places[subscriber] = map[string]Place{}
	for n, e := range events {
		v.places[subscriber][e.ID] = places[n]
	}
	return nil
}

// open: the subscriber knows nothing of the event, and should.
func (v *view) open(subscriber string, e Event) bool {
	return slices.Equal(v.states[subscriber][e.ID].In, []Standing{None}) && !e.At.Before(v.answer[subscriber].CompleteSince)
}

func (v *view) known(e Event) bool {
	for _, states := range v.states {
		if in := states[e.ID].In; !slices.Equal(in, []Standing{None}) && !slices.Equal(in, []Standing{Exempt}) {
			return true
		}
	}
	return false
}

// verdict is what an event is at a subscriber, or for the store alone.
type verdict struct {
	at       string
	standing Standing
	kind     Kind // of the finding; empty: it fits
	note     string
}

func (v verdict) fits() bool { return v.kind == "" }

// service is where the finding stands.
func (v verdict) service() string {
	if v.at == "" || v.kind == KindUnpublished {
		return StoreName
	}
	return v.at
}

// verdicts judges an event at each subscriber.
func (v *view) verdicts(r *run, e Event) (all []verdict) {
	for _, s := range r.subscribers {
		if r.accounts[s.Name()] != nil {
			all = append(all, v.verdict(r, s.Name(), e))
		}
	}
	if place, asked := v.places[""][e.ID]; asked {
		own := verdict{}
		if place == Unpublished {
			own.kind = KindUnpublished
		}
		all = append(all, own)
	}
	return all
}

func (v *view) verdict(r *run, name string, e Event) verdict {
	state := v.states[name][e.ID]
	out := verdict{at: name, note: state.Note}
	switch {
	case len(state.In) == 0:
		out.standing = Doubtful
		return out
	case len(state.In) > 1:
		words := make([]string, len(state.In))
		for n, s := range state.In {
			words[n] = string(s)
		}
		out.kind, out.note = KindTwice, strings.TrimSpace(strings.Join(words, " and ")+" "+state.Note)
		return out
	case state.Lane != nil:
		out.kind, out.note = KindLane, fmt.Sprintf("lane %d", *state.Lane)
		return out
	}
	out.standing = state.In[0]
	switch out.standing {
	case None, Passed:
		if e.At.Before(v.answer[name].CompleteSince) {
			out.standing = Removed
			return out
		}
		if out.standing == Passed {
			out.kind = KindNoEffect
			return out
		}
		return v.unknown(r, out, e)
	case Unproven:
		out.kind = KindUnproven
	}
	return out
}

// unknown judges an event of which a subscriber knows nothing.
func (v *view) unknown(r *run, out verdict, e Event) verdict {
	switch place := v.places[out.at][e.ID]; place {
	case InOutbox, InRefill, InStream, OnRoute:
		out.standing = Coming
	case Refused, Held:
		out.standing = Unhandled
	case Elsewhere:
		out.standing = Exempt
	case Unpublished:
		out.kind = KindUnpublished
	case Untold:
		out.standing = Doubtful
	default:
		switch before := v.before(r, out.at, e); before {
		case None:
			out.kind, out.note = KindLost, string(place)
		default:
			out.standing = before
		}
	}
	return out
}

// before looks for the event at those that hand it on to the subscriber.
func (v *view) before(r *run, name string, e Event) Standing {
	for _, states := range v.states {
		if slices.Contains(states[e.ID].Onward, name) {
			return Coming
		}
	}
	at := slices.Index(r.overview.Sequential, name)
	for n := range at {
		earlier := r.overview.Sequential[n]
		states, asked := v.states[earlier]
		switch {
		case !asked:
			return Doubtful
		case slices.Contains(states[e.ID].In, Settled):
			return Settled
		}
	}
	return None
}

// extras looks for events that subscribers know and the store does not.
func (r *run) extras(ctx context.Context) error {
	for _, s := range slices.Clone(r.subscribers) {
		if r.accounts[s.Name()] == nil {
			continue
		}
		for cursor := ""; ; {
			page, err := s.Held(ctx, r.Window, cursor)
			if err != nil {
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				r.mute(s, err)
				break
			}
			if err := r.compareHeld(ctx, s.Name(), page.Events); err != nil {
				return err
			}
			if cursor = page.Next; cursor == "" {
				break
			}
		}
	}
	return nil
}

func (r *run) compareHeld(ctx context.Context, name string, held []HeldEvent) error {
	for part := range slices.Chunk(held, MaxEvents) {
		ids := make([]string, len(part))
		for n, h := range part {
			ids[n] = h.ID
		}
		// An event is committed before anybody can know it, so this needs no second look.
		unknown, err := r.store.Unknown(ctx, ids)
		if err != nil {
			return fmt.Errorf("store: known events: %w", err)
		}
		for _, h := range part {
			if slices.Contains(unknown, h.ID) {
				r.report.add(KindExtra, name, Item{Event: h.ID, Order: h.Order, Version: h.Version})
			}
		}
	}
	return nil
}
