package unhandled

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/pillarbox/pillarbox/services/suite/terminal"
	"github.com/pillarbox/pillarbox/shared/consumer"
	"github.com/pillarbox/pillarbox/shared/operate"
)

// Dead is the table of the subcommands of "suite dead".
type Dead struct {
	Common `embed:""`

	List    deadList    `cmd:"" name:"ls" help:"List dead letters, the oldest first."`
	Show    deadShow    `cmd:"" help:"Show a dead letter: body, headers, the chain of errors, every attempt."`
	Drop    deadDrop    `cmd:"" help:"Remove dead letters for good; an order that one holds goes on without it."`
	Redrive deadRedrive `cmd:"" help:"Do dead letters again: a fixed set, first 1, then 10, then 100 at a time, until the first failure."`
	Status  deadStatus  `cmd:"" help:"Show how redrives stand."`
	Cancel  deadCancel  `cmd:"" help:"End a redrive before its next letter."`
	Actions deadActions `cmd:"" help:"List what operators did to parked events and dead letters, the newest first."`
}

// Help is the end of the help of the group.
func (Dead) Help() string { return addressHelp }

// filter says which letters are meant.
type filter struct {
	Order    string          `name:"order" placeholder:"ID" help:"Only letters of this order."`
	Since    terminal.Moment `name:"since" placeholder:"TIME" help:"Only younger ones: a time such as 2026-11-30T11:00:00Z, or how long ago, such as 2h."`
	Matching string          `name:"matching" placeholder:"TEXT" help:"Only those whose error holds this text."`
}

func (f filter) letters() consumer.LetterFilter {
	return consumer.LetterFilter{Order: f.Order, Since: f.Since.Time, Reason: f.Matching}
}

type deadList struct {
	filter   `embed:""`
	Limit    int `name:"limit" short:"n" default:"200" help:"Most letters of each service."`
	statuses `kong:"-"`
}

// Run lists.
func (c *deadList) Run(group *Dead) error {
	if c.Limit < 1 {
		return errors.New("--limit must be at least 1")
	}
	return group.run(func(ctx context.Context, w *work) error {
		rows := [][]string{{"SERVICE", "LETTER", "ORDER", "VERSION", "ATTEMPTS", "DIED", "ORDER IS", "ERROR"}}
		more := false
		for _, k := range w.clients {
			items, cut, err := pages(c.Limit, func(after string, limit int) (operate.Page[consumer.DeadLetter], error) {
				return k.Letters(ctx, c.letters(), after, limit)
			})
			if err != nil {
				return fmt.Errorf("%s: %w", k.Service, err)
			}
			more = more || cut
			for _, l := range items {
				if w.json {
					if err := w.Object(l); err != nil {
						return err
					}
				}
				rows = append(rows, []string{l.Service, l.ID, terminal.OrDash(l.Order), version(l.Version), strconv.Itoa(l.Attempts), shown(l.At) + " ago", orderIs(l), l.Reason})
			}
		}
		return w.list(rows, "there is no dead letter", more)
	})
}

func version(v int64) string {
	if v == 0 {
		return "-"
	}
	return strconv.FormatInt(v, 10)
}

func orderIs(l consumer.DeadLetter) string {
	switch {
	case l.Holds:
		return "held"
	case l.Skipped:
		return "gone on"
	}
	return "-"
}

type deadShow struct {
	Letter   string `arg:"" help:"Id of the letter."`
	statuses `kong:"-"`
}

// Run shows.
func (c *deadShow) Run(group *Dead) error {
	return group.run(func(ctx context.Context, w *work) error {
		found, err := w.with(ctx, c.Letter)
		if err != nil {
			return err
		}
		for _, k := range found {
			l, err := k.Letter(ctx, c.Letter)
			if err != nil {
				return fmt.Errorf("%s: %w", k.Service, err)
			}
			if w.json {
				if err := w.Object(l); err != nil {
					return err
				}
				continue
			}
			facts := [][]string{
				{"service", l.Service}, {"letter", l.ID}, {"event", terminal.OrDash(l.Event)}, {"order", terminal.OrDash(l.Order)}, {"version", version(l.Version)},
				{"order is", orderIs(l)}, {"sequence", strconv.FormatUint(l.Sequence, 10)}, {"attempts", strconv.Itoa(l.Attempts)},
				{"died", l.At.Format(time.RFC3339)}, {"error", l.Reason},
			}
			if err := w.entry(facts, l.Content); err != nil {
				return err
			}
		}
		return nil
	})
}

// with returns the services that have the letter; one at least must.
func (w *work) with(ctx context.Context, id string) (found []*operate.Client, err error) {
	for _, k := range w.clients {
		switch _, err := k.Letter(ctx, id); {
		case errors.Is(err, consumer.ErrNotFound):
		case err != nil:
			return nil, fmt.Errorf("%s: %w", k.Service, err)
		default:
			found = append(found, k)
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("there is no dead letter %q", id)
	}
	return found, nil
}

// entry prints facts and what the message held.
func (w *work) entry(facts [][]string, c *consumer.Content) error {
	if c != nil {
		facts = append(facts, []string{"topic", terminal.OrDash(c.Subject)})
	}
	for _, f := range facts {
		if err := w.Line("%-13s %s", f[0], f[1]); err != nil {
			return err
		}
	}
	if c == nil {
		return w.Line("")
	}
	var tried []struct {
		At      time.Time `json:"at"`
		Attempt int       `json:"attempt"`
		Error   string    `json:"error"`
	}
	if json.Unmarshal(c.History, &tried) == nil {
		for _, t := range tried {
			if err := w.Line("%-13s %s %s", "attempt "+strconv.Itoa(t.Attempt), t.At.Format(time.RFC3339), t.Error); err != nil {
				return err
			}
		}
	}
	var headers map[string][]string
	if json.Unmarshal(c.Headers, &headers) == nil {
		for _, name := range sortedKeys(headers) {
			for _, value := range headers[name] {
				if err := w.Line("%-13s %s: %s", "header", name, value); err != nil {
					return err
				}
			}
		}
	}
	if c.Body == nil {
		return errors.Join(w.Line("%-13s %s", "body (base64)", c.BodyBase64), w.Line(""))
	}
	var pretty bytes.Buffer
	if json.Compact(&pretty, []byte(*c.Body)) != nil {
		pretty.Reset()
		pretty.WriteString(*c.Body)
	}
	return errors.Join(w.Line("%-13s %s", "body", pretty.String()), w.Line(""))
}

type deadDrop struct {
	Letters  []string `arg:"" help:"Ids of letters."`
	Reason   string   `name:"reason" required:"" placeholder:"TEXT" help:"Why, for the record."`
	Yes      bool     `name:"yes" short:"y" help:"Do not ask."`
	statuses `kong:"-"`
}

// Run looks at all of them first, asks, and drops one after the other.
func (c *deadDrop) Run(group *Dead) error {
	return group.run(func(ctx context.Context, w *work) error {
		type victim struct {
			client *operate.Client
			id     string
		}
		var victims []victim
		for _, id := range c.Letters {
			found, err := w.with(ctx, id)
			if err != nil {
				return err
			}
			if len(found) > 1 {
				return fmt.Errorf("%s is dead at %s and %s: choose one with --service", id, found[0].Service, found[1].Service)
			}
			victims = append(victims, victim{found[0], id})
		}
		err := w.Confirm(ctx, c.Yes, "Drop %d dead letters for good, with their bytes; orders that they hold go on without them.", len(victims))
		if err != nil {
			return err
		}
		var problems []error
		for _, v := range victims {
			if err := v.client.Drop(ctx, operate.Drop{ID: v.id, Reason: c.Reason}); err != nil {
				problems = append(problems, fmt.Errorf("%s: %s: %w", v.client.Service, v.id, err))
				continue
			}
			if err := w.say(map[string]any{"service": v.client.Service, "dropped": v.id}, "%s: %s dropped", v.client.Service, v.id); err != nil {
				return err
			}
		}
		return errors.Join(problems...)
	})
}
