// Package unhandled holds the operator's commands over events that did not take
// effect: suite parked ls, show, retry, fill and skip, and suite dead ls, show,
// drop, redrive, status, cancel and actions.
//
// They work through the admin port of the suite that runs on a folder, through
// the admin ports of separate services, and on a folder without a suite directly.
// Who did what, and why, is kept in each service's database. What destroys asks a
// person first and wants --yes of a script. A redrive is done by the service: the
// tool only starts, watches and cancels it, and may end at any time.
package unhandled

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/pillarbox/pillarbox/services/store/storesvc"
	"github.com/pillarbox/pillarbox/services/suite/all"
	"github.com/pillarbox/pillarbox/services/suite/inprocess"
	"github.com/pillarbox/pillarbox/services/suite/terminal"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/logs"
	"github.com/pillarbox/pillarbox/shared/operate"
)

// Common are the flags of every command.
type Common struct {
	Data    string   `name:"data" env:"PILLARBOX_DATA" default:"./data" type:"path" help:"Data folder of a suite, running or not."`
	Admin   []string `name:"admin" env:"PILLARBOX_ADMIN_URL" placeholder:"URL" help:"Admin addresses of running services instead, as http://host:port, several separated by commas."`
	Service []string `name:"service" short:"s" placeholder:"NAME" help:"Only this service (mailer, audit or loyalty); may be repeated."`
	As      string   `name:"as" placeholder:"NAME" help:"Who acts, for the record (default: the user and host of this process)."`
	JSON    bool     `name:"json" help:"Print JSON, one object per line."`

	// Streams replaces standard input, output and error; nil: the process's own.
	Streams *terminal.Streams `kong:"-"`
}

// AfterApply lets the command line go before the environment.
func (c *Common) AfterApply(k *kong.Context) error {
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
	return nil
}

const addressHelp = `The services are those of the running suite of --data, of that folder itself when no suite runs on it, or those at the
addresses of --admin. Of --data and --admin, the one on the command line counts; else PILLARBOX_ADMIN_URL, when set,
goes before PILLARBOX_DATA.

Exit status: 0 when done, 1 on an error or when not confirmed.`

// statuses is the end of the help of each command.
type statuses struct{}

// Help names the exit statuses.
func (statuses) Help() string {
	return "Exit status: 0 when done, 1 on an error or when not confirmed."
}

// work is what a command has to work with.
type work struct {
	*terminal.Streams
	json    bool
	clients []*operate.Client
	store   *operate.Client // nil when it is not there
	stopped bool            // no service runs: this process holds the folder
	close   func() error
}

// run finds the services, does the job and lets go of them again.
func (c *Common) run(do func(context.Context, *work) error) (err error) {
	w := &work{Streams: c.Streams, json: c.JSON, close: func() error { return nil }}
	if w.Streams == nil {
		w.Streams = terminal.Standard()
	}
	ctx, stop := w.Context()
	defer stop()
	if err = c.open(ctx, w); err == nil {
		err = do(ctx, w)
	}
	err = errors.Join(err, w.close())
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return errors.New("interrupted")
	}
	return err
}

func (c *Common) open(ctx context.Context, w *work) (err error) {
	for _, name := range c.Service {
		if all.Operators()[name] == nil {
			return fmt.Errorf("there is no service %q with parked events and dead letters", name)
		}
	}
	if len(c.Admin) > 0 {
		var addresses []string
		for _, a := range c.Admin {
			if !strings.Contains(a, "://") {
				a = "http://" + a
			}
			addresses = append(addresses, a)
		}
		w.clients, err = operate.Dial(ctx, addresses, c.who())
		if err != nil {
			return err
		}
		return c.choose(w)
	}
	place, err := inprocess.Reach(ctx, c.Data)
	if err != nil {
		return err
	}
	w.close = place.Close
	if place.Admin != "" {
		w.clients, err = operate.Dial(ctx, []string{"http://" + place.Admin}, c.who())
		if err != nil {
			return err
		}
		return c.choose(w)
	}
	w.stopped = true
	if err := c.openFolder(ctx, w); err != nil {
		return err
	}
	if len(w.clients) == 0 {
		return fmt.Errorf("no service has run on %s yet", c.Data)
	}
	return c.choose(w)
}

// openFolder opens the services' own databases.
func (c *Common) openFolder(ctx context.Context, w *work) error {
	log := logs.New(w.Err, "text", slog.LevelError)
	for _, e := range (all.Settings{}).Entries() {
		path := filepath.Join(c.Data, e.Name+".db")
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		options := database.Options{Schema: e.Name}
		// The folder may be an older release's.
		if err := database.Migrate(ctx, "sqlite:"+path, e.Migrations, options); err != nil {
			return fmt.Errorf("%s: apply migrations: %w", e.Name, err)
		}
		db, err := database.Open("sqlite:"+path, options)
		if err != nil {
			return fmt.Errorf("%s: %w", e.Name, err)
		}
		before := w.close
		w.close = func() error { return errors.Join(db.Close(), before()) }
		handler := storesvc.Admin(db)
		if operator := all.Operators()[e.Name]; operator != nil {
			handler = operate.Handler(operator(db, log))
		}
		w.clients = append(w.clients, operate.Local(e.Name, handler, c.who()))
	}
	return nil
}

// choose keeps the services that are meant, and tells the store from those that have parked events.
func (c *Common) choose(w *work) error {
	for n, k := range w.clients {
		if k.Service == operate.Store {
			w.store, w.clients = k, slices.Delete(w.clients, n, n+1)
			break
		}
	}
	if len(c.Service) == 0 {
		if len(w.clients) == 0 {
			return errors.New("no service with parked events is there")
		}
		return nil
	}
	w.clients = slices.DeleteFunc(w.clients, func(k *operate.Client) bool { return !slices.Contains(c.Service, k.Service) })
	if len(w.clients) == 0 {
		return fmt.Errorf("%s is not there", strings.Join(c.Service, ", "))
	}
	return nil
}

// who is the name for the record.
func (c *Common) who() string {
	return cmp.Or(c.As, terminal.Who())
}

// shown is a time in a table.
func shown(t time.Time) string { return terminal.Ago(time.Since(t)) }
