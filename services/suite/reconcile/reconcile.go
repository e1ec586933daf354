// Package reconcile is the command "suite reconcile": it proves on a user's own
// deployment that nothing is lost, doubled or made up (shared/reconcile says
// what that means and asks), or names what is.
//
// It works on the suite that runs on a folder, on that folder itself when none
// runs, and on separate services at their admin ports. It reads only, beside the
// full load. With --every it goes on and shows what it found to Prometheus.
package reconcile

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/pillarbox/pillarbox/services/suite/terminal"
	"github.com/pillarbox/pillarbox/shared/reconcile"
)

// Command is "suite reconcile".
type Command struct {
	Data    string          `name:"data" env:"PILLARBOX_DATA" default:"./data" type:"path" help:"Data folder of a suite, running or not."`
	Admin   []string        `name:"admin" env:"PILLARBOX_ADMIN_URL" placeholder:"URL" help:"Admin addresses of running services instead, the store's among them, as http://host:port, several separated by commas."`
	Since   terminal.Moment `name:"since" placeholder:"WHEN" help:"Only events of this time on: 2026-11-30T11:00:00Z, or 2h for the last two hours."`
	Order   string          `name:"order" placeholder:"ID" help:"Only this order."`
	Service []string        `name:"service" short:"s" placeholder:"NAME" help:"Judge only this subscriber; may be repeated."`
	Every   time.Duration   `name:"every" placeholder:"TIME" help:"Go on, and look again after this time (at least 10s)."`
	Listen  string          `name:"listen" placeholder:"ADDRESS" help:"With --every: listen address of /metrics."`
	JSON    bool            `name:"json" help:"Print JSON: a report is one line."`

	// Streams replaces standard output and error; nil: the process's own.
	Streams *terminal.Streams `kong:"-"`
	// Pauses replaces the times between looks at what does not fit.
	Pauses []time.Duration `kong:"-"`
}

// Help is the end of the command's help.
func (Command) Help() string {
	return `For each event of the store it asks each subscriber what it knows, and the store where the rest is. What does not fit is
looked at again for some ten seconds, and what stays is named: the first 100 ids of each kind at each service, and how many there are.
What moves is no finding, nor what retention removed.

Of --data and --admin, the one on the command line counts; else PILLARBOX_ADMIN_URL, when set, goes before PILLARBOX_DATA.

Exit status: 0 all is conserved, 1 something is not, 2 somebody could not be asked (and nothing was found at the others).`
}

// AfterApply lets the command line go before the environment.
func (c *Command) AfterApply(k *kong.Context) error {
	onLine := map[string]bool{}
	for _, p := range k.Path {
		if p.Flag != nil && !p.Resolved {
			onLine[p.Flag.Name] = true
		}
	}
	switch {
	case onLine["data"] && onLine["admin"]:
		return errors.New("--data and --admin are two addresses: give one")
	case onLine["data"]:
		c.Admin = nil
	}
	if c.Every != 0 && c.Every < 10*time.Second {
		return errors.New("--every must be at least 10s")
	}
	if c.Listen != "" && c.Every == 0 {
		return errors.New("--listen needs --every")
	}
	return nil
}

// Run asks, reports and returns an error with the exit status.
func (c *Command) Run() error {
	if c.Streams == nil {
		c.Streams = terminal.Standard()
	}
	ctx, stop := c.Streams.Context()
	defer stop()
	if c.Every > 0 {
		return c.watch(ctx)
	}
	report, err := c.once(ctx)
	if err == nil {
		err = c.print(report)
	}
	switch {
	case ctx.Err() != nil:
		return terminal.Exit(2, "interrupted")
	case err != nil:
		return terminal.Exit(2, err.Error())
	case report.Total() > 0:
		return terminal.Exit(1, terminal.Count(report.Total(), "finding"))
	case len(report.Silent) > 0:
		return terminal.Exit(2, fmt.Sprintf("%s could not be asked: %s", report.Silent[0].Who, report.Silent[0].Why))
	}
	return nil
}

// once looks once.
func (c *Command) once(ctx context.Context) (report reconcile.Report, err error) {
	config := reconcile.Config{
		Window: reconcile.Window{Since: c.Since.Time, Order: c.Order}, Services: c.Service, Pauses: c.Pauses,
	}
	if len(c.Admin) > 0 {
		return c.remote(ctx, config, c.Admin)
	}
	return c.folder(ctx, config)
}

// remote asks through admin ports.
func (c *Command) remote(ctx context.Context, config reconcile.Config, addresses []string) (report reconcile.Report, err error) {
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	addresses = slices.Clone(addresses)
	for n, a := range addresses {
		if !strings.Contains(a, "://") {
			addresses[n] = "http://" + a
		}
	}
	store, subscribers, silent, err := reconcile.Dial(ctx, client, addresses, terminal.Who())
	if err != nil {
		return report, err
	}
	return reconcile.Run(ctx, config, store, subscribers, silent...)
}
