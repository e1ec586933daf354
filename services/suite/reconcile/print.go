package reconcile

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/pillarbox/pillarbox/services/suite/terminal"
	"github.com/pillarbox/pillarbox/shared/reconcile"
)

// columns are the states of the table, the first always.
var columns = []struct {
	standing reconcile.Standing
	heading  string
}{
	{reconcile.Done, "DONE"}, {reconcile.Assumed, "ASSUMED DONE"}, {reconcile.InFlight, "IN FLIGHT"}, {reconcile.Coming, "NOT YET DELIVERED"}, {reconcile.Waiting, "WAITING"},
	{reconcile.Parked, "PARKED"}, {reconcile.Dead, "DEAD"}, {reconcile.Settled, "SETTLED BY A PERSON"}, {reconcile.Unhandled, "HELD AT THE STORE"},
	{reconcile.Exempt, "NOT MEANT FOR IT"}, {reconcile.Removed, "REMOVED BY RETENTION"}, {reconcile.Doubtful, "CANNOT BE TOLD"},
}

func (c *Command) print(r reconcile.Report) error {
	if c.JSON {
		return c.Streams.Object(r)
	}
	since := "of all times"
	if !r.Since.IsZero() {
		since = "since " + r.Since.Format(time.RFC3339)
	}
	if err := c.Streams.Line("%s of %s, %s; %d wait in the outbox, the broker refuses %d",
		terminal.Count(r.Events, "event"), terminal.Count(r.Orders, "order"), since, r.Waiting, r.Refused); err != nil {
		return err
	}
	if err := c.Streams.Table(table(r)); err != nil {
		return err
	}
	for _, f := range slices.Concat(r.Findings, r.Assumed) {
		if err := c.finding(f); err != nil {
			return err
		}
	}
	for _, s := range r.Silent {
		if err := c.Streams.Line("not answered: %s: %s", s.Who, s.Why); err != nil {
			return err
		}
	}
	if len(r.Findings)+len(r.Silent) == 0 {
		return c.Streams.Line("conserved: nothing is lost, doubled or made up")
	}
	return nil
}

// table leaves out what nobody has.
func table(r reconcile.Report) [][]string {
	heading := []string{"SUBSCRIBER"}
	rows := make([][]string, len(r.Subscribers))
	for n, s := range r.Subscribers {
		rows[n] = []string{s.Service}
	}
	for n, c := range columns {
		total := 0
		for _, s := range r.Subscribers {
			total += s.Events[c.standing]
		}
		if n > 0 && total == 0 {
			continue
		}
		heading = append(heading, c.heading)
		for n, s := range r.Subscribers {
			rows[n] = append(rows[n], strconv.Itoa(s.Events[c.standing]))
		}
	}
	return append([][]string{heading}, rows...)
}

func (c *Command) finding(f reconcile.Finding) error {
	if err := c.Streams.Line("%s at %s: %d: %s", f.Kind, f.Service, f.Count, f.Kind.Means()); err != nil {
		return err
	}
	for _, i := range f.Items {
		text := "  "
		if i.Order != "" {
			text += "order " + i.Order + " "
		}
		if i.Version > 0 {
			text += fmt.Sprintf("version %d ", i.Version)
		}
		if i.Event != "" {
			text += "event " + i.Event
		}
		if i.Note != "" {
			text += " (" + i.Note + ")"
		}
		if err := c.Streams.Line("%s", text); err != nil {
			return err
		}
	}
	if left := f.Count - len(f.Items); left > 0 {
		return c.Streams.Line("  and %d more", left)
	}
	return nil
}
