// Package doctor is the command "suite doctor": it runs the checks that stand
// next to what they look at (shared/doctor has the table) on a suite's folder,
// running or stopped, or on the separate services' databases, broker and pickup
// folder, and reports what endangers the promises.
//
// It disturbs nobody: SQLite files are opened for reading only, PostgreSQL is
// asked in single statements, the broker by requests that change nothing. What
// it tries out are the pickup folder, with a scratch file, and the rights of the
// NATS users, with requests that fail in any case. A crash may leave that
// scratch file, which begins with a dot and .tmp.
package doctor

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/pillarbox/pillarbox/services/internal/boot"
	"github.com/pillarbox/pillarbox/services/suite/all"
	"github.com/pillarbox/pillarbox/services/suite/terminal"
	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/doctor"
)

// limit bounds the whole look.
const limit = time.Minute

// Command is "suite doctor".
type Command struct {
	Data        string   `name:"data" env:"PILLARBOX_DATA" default:"./data" type:"path" help:"Data folder of a suite, running or not."`
	DatabaseURL string   `name:"database-url" placeholder:"URL" help:"The separate services instead: their database, when each does not have an address in its own PILLARBOX_<SERVICE>_DATABASE_URL."`
	NATSURL     string   `name:"nats-url" placeholder:"URL" help:"Their NATS servers, when each does not have an address in its own PILLARBOX_<SERVICE>_NATS_URL."`
	Monitor     string   `name:"nats-monitor-url" env:"PILLARBOX_NATS_MONITOR_URL" placeholder:"URL" help:"Monitoring address of the NATS server, as http://host:8222; only there can be seen whether it fsyncs each write."`
	Service     []string `name:"service" enum:"${services}" help:"Look at this service only (${services}); may be repeated."`
	JSON        bool     `name:"json" help:"Print JSON, one object per line."`

	// Out replaces standard output; nil: the process's own.
	Out io.Writer `kong:"-"`

	onLine map[string]bool // the flags that stood on the command line
}

// Help is the end of the command's help.
func (Command) Help() string {
	return `Without an address on the command line it looks at the separate services when PILLARBOX_DATABASE_URL or one of
PILLARBOX_<SERVICE>_DATABASE_URL is set, else at the suite of the data folder. The services' other settings are taken
from the environment, as the services do.

Exit status: 0 nothing found, 1 findings, 2 something could not be checked (and nothing was found in the rest).`
}

// AfterApply remembers what the command line said.
func (c *Command) AfterApply(k *kong.Context) error {
	c.onLine = map[string]bool{}
	for _, p := range k.Path {
		if p.Flag != nil && !p.Resolved {
			c.onLine[p.Flag.Name] = true
		}
	}
	if c.onLine["data"] && (c.DatabaseURL != "" || c.NATSURL != "") {
		return fmt.Errorf("--data is a suite, --database-url and --nats-url are separate services: give one of them")
	}
	return nil
}

// Names are the environment names that the command takes besides those of its
// flags: the separate services' addresses.
func Names() []string {
	names := []string{"PILLARBOX_DATABASE_URL", "PILLARBOX_NATS_URL"}
	for _, service := range all.Names() {
		prefix := "PILLARBOX_" + strings.ToUpper(service)
		for _, rest := range []string{"_DATABASE_URL", "_MIGRATE_URL", "_NATS_URL", "_DATABASE_CONNECTIONS", "_ADMIN", "_HTTP"} {
			names = append(names, prefix+rest)
		}
	}
	return names
}

// read is what the program itself takes from a file already.
const read = "PILLARBOX_NATS_URL"

// secrets may be given as files.
func secrets() []string {
	return slices.DeleteFunc(Names(), func(name string) bool { return !strings.HasSuffix(name, "_URL") || name == read })
}

// EnvNames are Names, and those with _FILE at their end.
func EnvNames() []string {
	names := Names()
	for _, name := range secrets() {
		names = append(names, name+"_FILE")
	}
	return names
}

// Run looks, reports and returns an error with the exit status.
func (c *Command) Run() error {
	signaled, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(signaled, limit)
	defer cancel()
	if c.Out == nil {
		c.Out = os.Stdout
	}
	l, err := c.examine(ctx)
	if err != nil {
		return terminal.Exit(2, err.Error())
	}
	if err := context.Cause(ctx); err != nil {
		return terminal.Exit(2, "interrupted: "+err.Error())
	}
	if err := l.print(c.Out, c.JSON); err != nil {
		return terminal.Exit(2, err.Error())
	}
	switch findings, unseen := len(l.Findings), len(l.Unseen); {
	case findings > 0:
		return terminal.Exit(1, terminal.Count(findings, "finding"))
	case unseen > 0:
		return terminal.Exit(2, terminal.Count(unseen, "thing")+" could not be checked: "+l.Unseen[0].String())
	}
	return nil
}

// look is a report and what it is about.
type look struct {
	doctor.Report
	services []string
	unused   []doctor.Check // that do not apply to this kind of installation
}

func (c *Command) examine(ctx context.Context) (*look, error) {
	l := &look{services: all.Names()}
	if len(c.Service) > 0 {
		l.services = slices.DeleteFunc(l.services, func(name string) bool { return !slices.Contains(c.Service, name) })
	}
	if err := boot.ReadSecretFiles(secrets()...); err != nil {
		return nil, err
	}
	settings, err := settingsOfEnv()
	if err != nil {
		return nil, err
	}
	if c.separate() {
		err = c.examineSeparate(ctx, settings, l)
	} else {
		err = c.examineFolder(ctx, settings, l)
	}
	return l, err
}

// separate reports whether the separate services are meant.
func (c *Command) separate() bool {
	if c.onLine["data"] {
		return false
	}
	return c.DatabaseURL != "" || c.NATSURL != "" || slices.ContainsFunc(Names(), func(name string) bool {
		return strings.HasSuffix(name, "_DATABASE_URL") && os.Getenv(name) != ""
	})
}

// settingsOfEnv are the services' settings as they take them from the environment.
func settingsOfEnv() (all.Settings, error) {
	var s struct {
		all.Settings `embed:""`
	}
	if err := parseEnv(&s, nil); err != nil {
		return all.Settings{}, err
	}
	return s.Settings, s.Settings.Validate()
}

// parseEnv fills target from the environment and its defaults.
func parseEnv(target any, vars kong.Vars) error {
	parser, err := kong.New(target, kong.Name("suite"), vars)
	if err != nil {
		return fmt.Errorf("settings: %w", err)
	}
	if _, err := parser.Parse(nil); err != nil {
		return fmt.Errorf("settings: %w", err)
	}
	return nil
}

// entries are the chosen services with their settings.
func (l *look) entries(s all.Settings) []all.Entry {
	return slices.DeleteFunc(s.Entries(), func(e all.Entry) bool { return !slices.Contains(l.services, e.Name) })
}

// subjects are the services without databases and brokers, for comparing their settings.
func subjects(s all.Settings) []boot.Subject {
	var found []boot.Subject
	for _, e := range s.Entries() {
		found = append(found, boot.Subject{Name: e.Name, Settings: e.Settings})
	}
	return found
}

// awaited connects to the broker, which must answer soon.
func awaited(ctx context.Context, conn *broker.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return conn.AwaitReady(ctx)
}
