package unhandled

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/pillarbox/pillarbox/services/suite/terminal"
	"github.com/pillarbox/pillarbox/shared/consumer"
	"github.com/pillarbox/pillarbox/shared/operate"
)

// Parked is the table of the subcommands of "suite parked".
type Parked struct {
	Common `embed:""`

	List  parkedList  `cmd:"" name:"ls" help:"List events that wait for a predecessor, for another attempt, or for a person."`
	Show  parkedShow  `cmd:"" help:"Show all that is parked of one order, with the events."`
	Retry parkedRetry `cmd:"" help:"Try parked events now instead of at their time."`
	Fill  parkedFill  `cmd:"" help:"Give an order the versions that never came, from the store's history."`
	Skip  parkedSkip  `cmd:"" help:"Let an order go on without the version that holds it, or without those that never came."`
}

// Help is the end of the help of the group.
func (Parked) Help() string { return addressHelp }

type parkedList struct {
	Order    string `name:"order" placeholder:"ID" help:"Only this order."`
	State    string `name:"state" placeholder:"STATE" help:"Only these: waiting (for a predecessor), parked (for another attempt) or dead (for a person)."`
	Limit    int    `name:"limit" short:"n" default:"200" help:"Most events of each service."`
	statuses `kong:"-"`
}

// Run lists.
func (c *parkedList) Run(group *Parked) error {
	if c.Limit < 1 {
		return errors.New("--limit must be at least 1")
	}
	return group.run(func(ctx context.Context, w *work) error {
		rows := [][]string{{"SERVICE", "ORDER", "VERSION", "STATE", "ATTEMPTS", "NEXT", "SINCE", "WHY"}}
		more := false
		for _, k := range w.clients {
			items, cut, err := pages(c.Limit, func(after string, limit int) (operate.Page[consumer.ParkedEvent], error) {
				return k.Parked(ctx, c.Order, c.State, after, limit)
			})
			if err != nil {
				return fmt.Errorf("%s: %w", k.Service, err)
			}
			more = more || cut
			for _, p := range items {
				if w.json {
					if err := w.Object(p); err != nil {
						return err
					}
				}
				rows = append(rows, []string{p.Service, p.Order, strconv.FormatInt(p.Version, 10), p.State, strconv.Itoa(p.Attempts), next(p), shown(p.Since), why(p)})
			}
		}
		return w.list(rows, "nothing is parked", more)
	})
}

func next(p consumer.ParkedEvent) string {
	switch {
	case p.NextAt == nil:
		return "-"
	case time.Until(*p.NextAt) <= 0:
		return "now"
	}
	return "in " + terminal.Ago(time.Until(*p.NextAt))
}

func why(p consumer.ParkedEvent) string {
	switch {
	case p.LastError != "":
		return p.LastError
	case p.Missing != nil:
		return p.Missing.String() + " never came"
	case p.Lane != nil:
		return fmt.Sprintf("waits for version %d", *p.Lane+1)
	}
	return "-"
}

// pages collects up to limit items, and says whether there are more.
func pages[T any](limit int, page func(after string, limit int) (operate.Page[T], error)) (items []T, more bool, err error) {
	for after := ""; ; {
		p, err := page(after, min(limit-len(items), consumer.MaxPage))
		if err != nil {
			return nil, false, err
		}
		items = append(items, p.Items...)
		if p.Next == "" || len(items) >= limit {
			return items, p.Next != "", nil
		}
		after = p.Next
	}
}

// list prints a table that has more than its heading, or says that there is nothing.
func (w *work) list(rows [][]string, nothing string, more bool) error {
	if len(rows) == 1 {
		w.Note("%s", nothing)
	}
	if more {
		defer w.Note("there are more: raise --limit or filter")
	}
	if w.json || len(rows) == 1 {
		return nil
	}
	return w.Table(rows)
}

type parkedShow struct {
	Order    string `arg:"" help:"Order id."`
	statuses `kong:"-"`
}

// Run shows.
func (c *parkedShow) Run(group *Parked) error {
	return group.run(func(ctx context.Context, w *work) error {
		found, err := w.ofOrder(ctx, c.Order)
		if err != nil {
			return err
		}
		for _, at := range found {
			for _, p := range at.events {
				if w.json {
					if err := w.Object(p); err != nil {
						return err
					}
					continue
				}
				facts := [][]string{
					{"service", p.Service}, {"order", p.Order}, {"version", strconv.FormatInt(p.Version, 10)}, {"event", p.Event},
					{"state", p.State}, {"attempts", strconv.Itoa(p.Attempts)}, {"next attempt", next(p)},
					{"since", p.Since.Format(time.RFC3339)}, {"why", why(p)},
				}
				if err := w.entry(facts, p.Content); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// at is what one service has parked of an order.
type at struct {
	client *operate.Client
	events []consumer.ParkedEvent
}

// ofOrder asks every service for an order; one at least must have it.
func (w *work) ofOrder(ctx context.Context, order string) (found []at, err error) {
	for _, k := range w.clients {
		events, err := k.ParkedOrder(ctx, order)
		switch {
		case errors.Is(err, consumer.ErrNotFound):
		case err != nil:
			return nil, fmt.Errorf("%s: %w", k.Service, err)
		default:
			found = append(found, at{k, events})
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("nothing of order %q is parked", order)
	}
	return found, nil
}

type parkedRetry struct {
	Order    string `arg:"" optional:"" help:"Order id."`
	Event    string `name:"event" placeholder:"ID" help:"Only this event."`
	All      bool   `name:"all" help:"All parked events."`
	Reason   string `name:"reason" placeholder:"TEXT" help:"Why, for the record."`
	statuses `kong:"-"`
}

// Run makes them due.
func (c *parkedRetry) Run(group *Parked) error {
	ask := operate.Retry{RetryFilter: consumer.RetryFilter{Order: c.Order, Event: c.Event, All: c.All}, Reason: c.Reason}
	if n := len(c.Order) + len(c.Event); n == 0 && !c.All || c.All && n > 0 || c.Order != "" && c.Event != "" {
		return errors.New("give an order, --event or --all")
	}
	return group.run(func(ctx context.Context, w *work) error {
		var found int64
		var problems []error // a service that fails stops no other
		for _, k := range w.clients {
			total, err := retryAll(ctx, k, ask)
			found += total
			if err != nil {
				problems = append(problems, fmt.Errorf("%s: %w", k.Service, err))
				continue
			}
			if err := w.say(map[string]any{"service": k.Service, "retried": total}, "%s: %d events are due now", k.Service, total); err != nil {
				return err
			}
		}
		if found == 0 && len(problems) == 0 && !c.All {
			return fmt.Errorf("nothing of %q is parked", c.Order+c.Event)
		}
		w.later()
		return errors.Join(problems...)
	})
}

// retryAll asks until a page is not full.
func retryAll(ctx context.Context, k *operate.Client, ask operate.Retry) (total int64, err error) {
	for {
		n, err := k.Retry(ctx, ask)
		total += n
		if err != nil || n < 10_000 {
			return total, err
		}
	}
}

// later says when a stopped folder's services act.
func (w *work) later() {
	if w.stopped {
		w.Note("no suite runs: this happens when it is started")
	}
}

// say prints one result.
func (w *work) say(object any, format string, args ...any) error {
	if w.json {
		return w.Object(object)
	}
	return w.Line(format, args...)
}

type parkedFill struct {
	Order    string `arg:"" help:"Order id."`
	Reason   string `name:"reason" placeholder:"TEXT" help:"Why, for the record."`
	statuses `kong:"-"`
}

// Run asks the store for what each service misses of the order, and hands it over.
func (c *parkedFill) Run(group *Parked) error {
	return group.run(func(ctx context.Context, w *work) error {
		if w.store == nil {
			return errors.New("the store has the events and is not there: add its admin address")
		}
		found, err := w.ofOrder(ctx, c.Order)
		if err != nil {
			return err
		}
		missed := false
		var problems []error // a service that fails stops no other
		for _, at := range found {
			if missing := at.events[0].Missing; missing != nil {
				missed = true
				if err := c.fill(ctx, w, at.client, *missing); err != nil {
					problems = append(problems, fmt.Errorf("%s: %w", at.client.Service, err))
				}
			}
		}
		if !missed {
			return fmt.Errorf("order %s misses no version", c.Order)
		}
		w.later()
		return errors.Join(problems...)
	})
}

func (c *parkedFill) fill(ctx context.Context, w *work, k *operate.Client, missing consumer.Range) error {
	for next := missing.From; next <= missing.To; {
		page, err := w.store.Events(ctx, c.Order, next, missing.To)
		if err != nil {
			return fmt.Errorf("store: %w", err)
		}
		if len(page) == 0 {
			page = []operate.StoredEvent{{}} // what comes first is not there
		}
		for _, e := range page {
			if e.Version != next {
				return fmt.Errorf("the store has no version %d of order %s: skip is what is left", next, c.Order)
			}
			if err := k.Fill(ctx, operate.Fill{Order: c.Order, Body: e.Body, Reason: c.Reason}); err != nil {
				return err
			}
			next++
		}
	}
	return w.say(map[string]any{"service": k.Service, "order": c.Order, "from": missing.From, "to": missing.To},
		"%s: %s of order %s handed over", k.Service, missing, c.Order)
}

type parkedSkip struct {
	Order    string `arg:"" help:"Order id."`
	Reason   string `name:"reason" required:"" placeholder:"TEXT" help:"Why, for the record."`
	Yes      bool   `name:"yes" short:"y" help:"Do not ask."`
	statuses `kong:"-"`
}

// Run looks what holds the order, asks, and lets it go on.
func (c *parkedSkip) Run(group *Parked) error {
	return group.run(func(ctx context.Context, w *work) error {
		found, err := w.ofOrder(ctx, c.Order)
		if err != nil {
			return err
		}
		if len(found) > 1 {
			return fmt.Errorf("order %s is parked at %s and %s: choose one with --service", c.Order, found[0].client.Service, found[1].client.Service)
		}
		first, service := found[0].events[0], found[0].client.Service
		if first.Lane == nil {
			return fmt.Errorf("%s keeps no order: nothing waits there", service)
		}
		r, what := consumer.Range{From: *first.Lane + 1, To: *first.Lane + 1}, "its event stays as a dead letter"
		if first.Missing != nil {
			r, what = *first.Missing, "should they still come, they are acknowledged without an effect"
		}
		err = w.Confirm(ctx, c.Yes, "Skip %s of order %s at %s: their effect never happens there; %s.", r, c.Order, service, what)
		if err != nil {
			return err
		}
		if err := found[0].client.Skip(ctx, operate.Skip{Order: c.Order, Range: r, Reason: c.Reason}); err != nil {
			return err
		}
		return w.say(map[string]any{"service": service, "order": c.Order, "from": r.From, "to": r.To}, "%s: %s of order %s skipped", service, r, c.Order)
	})
}
