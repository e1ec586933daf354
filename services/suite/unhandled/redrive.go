package unhandled

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/pillarbox/pillarbox/services/suite/terminal"
	"github.com/pillarbox/pillarbox/shared/consumer"
	"github.com/pillarbox/pillarbox/shared/operate"
)

// watchEvery is between two looks at a redrive.
const watchEvery = 300 * time.Millisecond

type deadRedrive struct {
	Letters  []string `arg:"" optional:"" help:"Ids of letters (at most 500)."`
	filter   `embed:""`
	All      bool   `name:"all" help:"All dead letters."`
	Rate     int    `name:"rate" default:"10" help:"Letters per second (1 to 1000)."`
	DryRun   bool   `name:"dry-run" help:"Only say what would be done."`
	Watch    bool   `name:"watch" help:"Wait for the end; exit status 1 when it stopped at a failure."`
	Reason   string `name:"reason" placeholder:"TEXT" help:"Why, for the record."`
	statuses `kong:"-"`
}

// Run starts one redrive at each service that has such letters.
func (c *deadRedrive) Run(group *Dead) error {
	f := c.letters()
	f.IDs = c.Letters
	chosen := len(c.Letters) > 0 || c.Order != "" || c.Matching != "" || !c.Since.IsZero()
	if chosen == c.All {
		return errors.New("name letters, or a filter, or --all")
	}
	return group.run(func(ctx context.Context, w *work) error {
		if w.stopped && c.Watch {
			return errors.New("no suite runs, so there is nothing to watch: start it, then suite dead status")
		}
		var started []consumer.Redrive
		var clients []*operate.Client
		var failed []error // one service that refuses stops no other
		for _, k := range w.clients {
			// Which services have such letters is looked up first: none of them is no error while another has.
			dry, err := k.StartRedrive(ctx, operate.Start{LetterFilter: f, Rate: c.Rate, DryRun: true, Why: c.Reason})
			if err == nil && dry.Total > 0 && !c.DryRun {
				dry, err = k.StartRedrive(ctx, operate.Start{LetterFilter: f, Rate: c.Rate, Why: c.Reason})
			}
			switch {
			case err != nil:
				failed = append(failed, fmt.Errorf("%s: %w", k.Service, err))
			case dry.Total > 0:
				started, clients = append(started, dry), append(clients, k)
			}
		}
		failure := errors.Join(failed...)
		if len(started) == 0 {
			return cmp.Or(failure, errors.New("no dead letter matches"))
		}
		if !c.Watch || c.DryRun {
			w.later()
			return errors.Join(w.redrives(started, c.DryRun), failure)
		}
		return errors.Join(w.watch(ctx, clients, started), failure)
	})
}

// watch waits for the end of redrives and reports it.
func (w *work) watch(ctx context.Context, clients []*operate.Client, started []consumer.Redrive) error {
	for n := range started {
		for started[n].State == "running" {
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(watchEvery):
			}
			now, err := clients[n].Redrive(ctx, started[n].ID)
			if err != nil {
				return fmt.Errorf("%s: %w (the redrive goes on; suite dead status shows it)", clients[n].Service, err)
			}
			started[n] = now
		}
	}
	if err := w.redrives(started, true); err != nil {
		return err
	}
	for _, r := range started {
		if r.State != "done" {
			return fmt.Errorf("%s: %s is %s: %s", r.Service, r.ID, r.State, r.Note)
		}
	}
	return nil
}

// redrives prints how redrives stand, and on wish the letters that are shown of them.
func (w *work) redrives(all []consumer.Redrive, items bool) error {
	rows := [][]string{{"SERVICE", "REDRIVE", "STATE", "DONE", "FAILED", "REFUSED", "GONE", "PENDING", "STAGE", "RATE", "STARTED", "BY", "NOTE"}}
	details := [][]string{{"SERVICE", "LETTER", "ORDER", "VERSION", "STATE", "NOTE"}}
	for _, r := range all {
		if w.json {
			if err := w.Object(r); err != nil {
				return err
			}
			continue
		}
		since := "-"
		if !r.At.IsZero() {
			since = shown(r.At) + " ago"
		}
		rows = append(rows, []string{
			r.Service, terminal.OrDash(r.ID), r.State, strconv.Itoa(r.Done), strconv.Itoa(r.Failed), strconv.Itoa(r.Refused), strconv.Itoa(r.Gone),
			strconv.Itoa(r.Pending), strconv.Itoa(r.Stage), strconv.Itoa(r.Rate) + "/s", since, terminal.OrDash(r.Who), terminal.OrDash(r.Note),
		})
		for _, i := range r.Items {
			details = append(details, []string{r.Service, i.Letter, terminal.OrDash(i.Order), version(i.Version), i.State, terminal.OrDash(i.Note)})
		}
	}
	if w.json {
		return nil
	}
	err := w.Table(rows)
	if err != nil || !items || len(details) == 1 {
		return err
	}
	return errors.Join(w.Bytes([]byte("\n")), w.Table(details))
}

type deadStatus struct {
	Redrive  string `arg:"" optional:"" help:"Id of a redrive (default: all that are remembered)."`
	statuses `kong:"-"`
}

// Run shows.
func (c *deadStatus) Run(group *Dead) error {
	return group.run(func(ctx context.Context, w *work) error {
		var found []consumer.Redrive
		for _, k := range w.clients {
			if c.Redrive == "" {
				all, err := k.Redrives(ctx)
				if err != nil {
					return fmt.Errorf("%s: %w", k.Service, err)
				}
				found = append(found, all...)
				continue
			}
			r, err := k.Redrive(ctx, c.Redrive)
			switch {
			case errors.Is(err, consumer.ErrNotFound):
			case err != nil:
				return fmt.Errorf("%s: %w", k.Service, err)
			default:
				found = append(found, r)
			}
		}
		switch {
		case len(found) > 0:
			return w.redrives(found, c.Redrive != "")
		case c.Redrive != "":
			return fmt.Errorf("there is no redrive %q", c.Redrive)
		}
		w.Note("there was no redrive yet")
		return nil
	})
}

type deadCancel struct {
	Redrive  string `arg:"" help:"Id of the redrive."`
	Reason   string `name:"reason" placeholder:"TEXT" help:"Why, for the record."`
	statuses `kong:"-"`
}

// Run cancels.
func (c *deadCancel) Run(group *Dead) error {
	return group.run(func(ctx context.Context, w *work) error {
		for _, k := range w.clients {
			r, err := k.Redrive(ctx, c.Redrive)
			if errors.Is(err, consumer.ErrNotFound) {
				continue
			}
			if err == nil && r.State != "running" {
				return fmt.Errorf("%s: %s is over: %s", k.Service, c.Redrive, r.State)
			}
			if err == nil {
				err = k.CancelRedrive(ctx, operate.Cancel{ID: c.Redrive, Reason: c.Reason})
			}
			if err != nil {
				return fmt.Errorf("%s: %w", k.Service, err)
			}
			return w.say(map[string]any{"service": k.Service, "cancelled": c.Redrive}, "%s: %s is cancelled", k.Service, c.Redrive)
		}
		return fmt.Errorf("there is no redrive %q", c.Redrive)
	})
}

type deadActions struct {
	Limit    int `name:"limit" short:"n" default:"50" help:"Most actions of each service."`
	statuses `kong:"-"`
}

// Run lists.
func (c *deadActions) Run(group *Dead) error {
	if c.Limit < 1 {
		return errors.New("--limit must be at least 1")
	}
	return group.run(func(ctx context.Context, w *work) error {
		rows := [][]string{{"SERVICE", "WHEN", "WHO", "ACTION", "TARGET", "REASON", "RESULT"}}
		more := false
		for _, k := range w.clients {
			items, cut, err := pages(c.Limit, func(after string, limit int) (operate.Page[consumer.Action], error) {
				return k.Actions(ctx, after, limit)
			})
			if err != nil {
				return fmt.Errorf("%s: %w", k.Service, err)
			}
			more = more || cut
			for _, a := range items {
				if w.json {
					if err := w.Object(struct {
						Service string `json:"service"`
						consumer.Action
					}{k.Service, a}); err != nil {
						return err
					}
				}
				rows = append(rows, []string{k.Service, a.At.Format(time.RFC3339), a.Who, a.Action, a.Target, terminal.OrDash(a.Reason), a.Result})
			}
		}
		return w.list(rows, "operators did nothing yet", more)
	})
}

func sortedKeys(m map[string][]string) []string { return slices.Sorted(maps.Keys(m)) }
