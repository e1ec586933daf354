package boot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/pillarbox/pillarbox/shared/admin"
	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/httpserver"
	"github.com/pillarbox/pillarbox/shared/logs"
)

// Program describes one service program; C is its settings.
type Program[C Settings] struct {
	Name       string // also schema, role and metric prefix
	HTTP       string // default listen address of the API, "" when there is none
	Admin      string // default listen address of the admin port
	Migrations fs.FS
	New        func(C, Deps) (Service, error)
}

// Settings is what every service's Config offers.
type Settings interface {
	// Validate reports all settings that are out of range.
	Validate() error
}

// Connection are the settings that only a separate process has; the suite knows
// them by itself.
type Connection struct {
	DatabaseURL string `name:"database-url" env:"${ENV}_DATABASE_URL,PILLARBOX_DATABASE_URL" required:"" placeholder:"URL" help:"PostgreSQL, postgres://user:password@host:port/name. Secret: also as …_FILE."`
	MigrateURL  string `name:"migrate-url" env:"${ENV}_MIGRATE_URL" placeholder:"URL" help:"PostgreSQL under the role that may change the schema. Default: the database URL. Secret: also as …_FILE."`
	NATSURL     string `name:"nats-url" env:"${ENV}_NATS_URL,PILLARBOX_NATS_URL" default:"nats://127.0.0.1:4222" help:"NATS servers, nats://user:password@host:port, several separated by commas. Secret: also as …_FILE."`
	DBConns     int    `name:"database-connections" env:"${ENV}_DATABASE_CONNECTIONS" default:"8" help:"Most open database connections of this process."`
	Admin       string `name:"admin" env:"${ENV}_ADMIN" default:"${admin}" help:"Listen address of /live, /ready and /metrics."`
	Logging     `embed:""`
}

// API is the listen address of a service that has one.
type API struct {
	HTTP string `name:"http" env:"${ENV}_HTTP" default:"${http}" help:"Listen address of the HTTP API."`
}

// command is what the program's command line holds.
type command[C Settings] struct {
	Run struct {
		Connection `embed:""`
		API        `embed:""`
		Settings   C `embed:""`
	} `cmd:"" default:"withargs" help:"Run the service (the default command)."`
	Health struct {
		Admin string `name:"admin" env:"${ENV}_ADMIN" default:"${admin}" help:"Admin address of the running service."`
	} `cmd:"" help:"Exit with 0 when the running service is ready, else with 1."`
}

// Main runs the program and never returns. extra are more subcommands: pairs of
// a name and a kong command with a Run() error method.
func Main[C Settings](p Program[C], extra ...kong.Option) {
	var cli command[C]
	prefix := "PILLARBOX_" + strings.ToUpper(p.Name)
	secrets := []string{
		prefix + "_DATABASE_URL", "PILLARBOX_DATABASE_URL", prefix + "_MIGRATE_URL", prefix + "_NATS_URL", "PILLARBOX_NATS_URL",
	}
	if err := ReadSecretFiles(secrets...); err != nil {
		Exit(p.Name, err)
	}
	options := append([]kong.Option{
		kong.Name(p.Name),
		kong.Description("The " + p.Name + " service of Pillarbox. Settings are flags or environment variables."),
		kong.Vars{"ENV": prefix, "http": p.HTTP, "admin": p.Admin},
		kong.UsageOnError(),
		kong.PostBuild(func(k *kong.Kong) error { return hideAPI(k, p.HTTP == "") }),
	}, extra...)
	parser, err := kong.New(&cli, options...)
	if err != nil {
		Exit(p.Name, err)
	}
	parsed, err := parser.Parse(os.Args[1:])
	parser.FatalIfErrorf(err)
	switch parsed.Command() {
	case "run":
		if err := CheckEnv(os.Environ(), []string{p.Name}, KnownEnv(parser.Model), secrets); err != nil {
			Exit(p.Name, err)
		}
		if err := cli.Run.Settings.Validate(); err != nil {
			Exit(p.Name, err)
		}
		Exit(p.Name, p.run(SignalContext(), cli.Run.Connection, cli.Run.HTTP, cli.Run.Settings))
	case "health":
		Exit(p.Name, health(cli.Health.Admin))
	default:
		Exit(p.Name, parsed.Run())
	}
}

// hideAPI takes the listen address out of the settings of a service without an
// API.
func hideAPI(k *kong.Kong, hide bool) error {
	return kong.Visit(k.Model, func(node kong.Visitable, next kong.Next) error {
		if flag, ok := node.(*kong.Flag); ok && hide && flag.Name == "http" {
			flag.Hidden, flag.Envs, flag.Tag.Envs = true, nil, nil
		}
		return next(nil)
	})
}

// run is the process's life. The admin port is up first, so that a process that
// waits can be told from one that hangs.
func (p Program[C]) run(ctx context.Context, c Connection, apiAddr string, settings C) (err error) {
	log := c.Logger().With(logs.Service, p.Name)
	checks, registry := &admin.Checks{}, admin.NewRegistry()
	adminPort, err := httpserver.Listen(httpserver.Config{Addr: c.Admin}, admin.Handler(checks, registry), log)
	if err != nil {
		return fmt.Errorf("admin port: %w", err)
	}
	work := func(ctx context.Context) error {
		return p.work(ctx, c, apiAddr, settings, checks, Deps{Log: log, Registry: Registerer(registry, p.Name)})
	}
	return RunStages(ctx, Stage{p.Name, work}, Stage{"admin port", adminPort.Run})
}

// work connects, builds the service and runs it with its API.
func (p Program[C]) work(ctx context.Context, c Connection, apiAddr string, settings C, checks *admin.Checks, d Deps) (err error) {
	options := database.Options{Schema: p.Name, MaxConns: c.DBConns}
	migrateURL := c.MigrateURL
	if migrateURL == "" {
		migrateURL = c.DatabaseURL
	}
	if err := Migrate(ctx, migrateURL, p.Migrations, options, d.Log); err != nil {
		return err
	}
	if d.DB, err = database.Open(c.DatabaseURL, options); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.DB.Close()) }()
	if d.Broker, err = broker.Connect(broker.Config{URL: c.NATSURL, Name: "pillarbox-" + p.Name}, d.Log); err != nil {
		return err
	}
	defer d.Broker.Close()

	service, err := p.New(settings, d)
	if err != nil {
		return err
	}
	stages := []Stage{{"service", service.Run}}
	if handler := service.Handler(); handler != nil {
		api, err := httpserver.Listen(httpserver.Config{Addr: apiAddr}, handler, d.Log)
		if err != nil {
			return fmt.Errorf("api port: %w", err)
		}
		stages = append([]Stage{{"api port", api.Run}}, stages...)
		d.Log.InfoContext(ctx, "serving", logs.Address, api.Addr())
	}
	checks.Set(p.Name, service.Ready)
	d.Log.InfoContext(ctx, "started")
	defer logStopped(ctx, d.Log)
	return RunStages(ctx, stages...)
}

func logStopped(ctx context.Context, log *slog.Logger) {
	log.InfoContext(context.WithoutCancel(ctx), "stopped")
}

// health asks a running service for its readiness.
func health(adminAddr string) error {
	if host, port, ok := strings.Cut(adminAddr, ":"); ok && (host == "" || host == "0.0.0.0") {
		adminAddr = "127.0.0.1:" + port
	}
	client := http.Client{Timeout: 3 * time.Second}
	answer, err := client.Get("http://" + adminAddr + "/ready")
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("not ready: %s", answer.Status)
	}
	return nil
}
