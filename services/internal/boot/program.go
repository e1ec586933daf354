package boot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
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
	Secrets    []string // environment names of settings that may be given as files
}

// Settings is what every service's Config offers.
type Settings interface {
	// Validate reports all settings that are out of range.
	Validate() error
}

// Connection are the settings that only a separate process has; the suite knows
// them by itself.
type Connection struct {
	DatabaseURL string `name:"database-url" env:"${ENV}_DATABASE_URL,PILLARBOX_DATABASE_URL" placeholder:"URL" help:"PostgreSQL, as postgres://user:password@host:port/name. Required. …_FILE names a file with it."`
	MigrateURL  string `name:"migrate-url" env:"${ENV}_MIGRATE_URL" placeholder:"URL" help:"The same database under the role that may change the schema (default: the database URL). …_FILE names a file with it."`
	NATSURL     string `name:"nats-url" env:"${ENV}_NATS_URL,PILLARBOX_NATS_URL" default:"nats://127.0.0.1:4222" help:"NATS servers, as nats://user:password@host:port, several separated by commas. …_FILE names a file with it."`
	DBConns     int    `name:"database-connections" env:"${ENV}_DATABASE_CONNECTIONS" default:"8" help:"Most open database connections of this process (2 to 1000)."`
	NATSMonitor string `name:"nats-monitor-url" env:"PILLARBOX_NATS_MONITOR_URL" placeholder:"URL" help:"Monitoring address of the NATS server, as http://host:8222: with it the checks see whether the server fsyncs each write."`
	Admin       string `name:"admin" env:"${ENV}_ADMIN" default:"${admin}" help:"Listen address of /live, /ready and /metrics, host:port."`
	Strictness  `embed:""`
	Logging     `embed:""`
}

// API is the listen address of a service that has one.
type API struct {
	HTTP string `name:"http" env:"${ENV}_HTTP" default:"${http}" help:"Listen address of the HTTP API, host:port."`
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

// Main runs the program and never returns. extra are more subcommands: kong
// commands with a Run() error method.
func Main[C Settings](p Program[C], extra ...kong.Option) {
	var cli command[C]
	env := p.envPrefix()
	line := CommandLine{
		Program:     p.Name,
		Description: "The " + p.Name + " service of Pillarbox. Settings are flags or environment variables.",
		Services:    []string{p.Name},
		Secrets: append([]string{
			env + "_DATABASE_URL", "PILLARBOX_DATABASE_URL", env + "_MIGRATE_URL", env + "_NATS_URL", "PILLARBOX_NATS_URL",
		}, p.Secrets...),
	}
	options := append([]kong.Option{
		kong.Vars{"ENV": env, "http": p.HTTP, "admin": p.Admin},
		kong.PostBuild(func(k *kong.Kong) error { return hideAPI(k, p.HTTP == "") }),
	}, extra...)
	parsed, err := line.Parse(&cli, os.Args[1:], options...)
	if err != nil {
		Exit(p.Name, err)
	}
	switch parsed.Command() {
	case "run":
		err = errors.Join(p.check(cli.Run.Connection, cli.Run.HTTP), cli.Run.Settings.Validate())
		if err == nil {
			err = p.run(SignalContext(), cli.Run.Connection, cli.Run.HTTP, cli.Run.Settings)
		}
		Exit(p.Name, err)
	case "health":
		Exit(p.Name, health(cli.Health.Admin))
	default:
		Exit(p.Name, parsed.Run())
	}
}

func (p Program[C]) envPrefix() string { return envPrefix + strings.ToUpper(p.Name) }

// check finds what is wrong with the connection settings before anything waits
// for a server: a process that waits for ever for "postgers://" helps nobody.
// Addresses with passwords stay out of the messages.
func (p Program[C]) check(c Connection, apiAddr string) error {
	env := p.envPrefix()
	var errs []error
	check := func(ok bool, name, problem string) {
		if !ok {
			errs = append(errs, errors.New(name+" "+problem))
		}
	}
	isPostgres := func(address string) bool {
		return strings.HasPrefix(address, "postgres://") || strings.HasPrefix(address, "postgresql://")
	}
	check(isPostgres(c.DatabaseURL), env+"_DATABASE_URL or PILLARBOX_DATABASE_URL", "must be set to postgres://user:password@host:port/name")
	check(c.MigrateURL == "" || isPostgres(c.MigrateURL), env+"_MIGRATE_URL", "must be postgres://user:password@host:port/name")
	check(isNATS(c.NATSURL), env+"_NATS_URL or PILLARBOX_NATS_URL", "must be nats://user:password@host:port, or several of these separated by commas")
	check(c.NATSMonitor == "" || isHTTP(c.NATSMonitor), "PILLARBOX_NATS_MONITOR_URL", "must be http://host:port")
	check(c.DBConns >= 2 && c.DBConns <= 1000, env+"_DATABASE_CONNECTIONS", "must be 2 to 1000")
	check(isAddress(c.Admin), env+"_ADMIN", "must be host:port")
	check(p.HTTP == "" || isAddress(apiAddr), env+"_HTTP", "must be host:port")
	return errors.Join(errs...)
}

// isNATS reports whether the client will take servers; its own complaint would
// quote them.
func isNATS(servers string) bool {
	for server := range strings.SplitSeq(servers, ",") {
		u, err := url.Parse(strings.TrimSpace(server))
		if err != nil || u.Host == "" || !slices.Contains([]string{"nats", "tls", "ws", "wss"}, u.Scheme) {
			return false
		}
	}
	return true
}

func isHTTP(address string) bool {
	u, err := url.Parse(address)
	return err == nil && u.Host != "" && (u.Scheme == "http" || u.Scheme == "https")
}

func isAddress(hostPort string) bool {
	_, port, err := net.SplitHostPort(hostPort)
	if err != nil {
		return false
	}
	_, err = strconv.ParseUint(port, 10, 16)
	return err == nil
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
	adminPort, err := httpserver.Listen(httpserver.Config{Addr: c.Admin, LingerTimeout: -1}, admin.Handler(checks, registry), log)
	if err != nil {
		return fmt.Errorf("admin port: %w", err)
	}
	work := func(ctx context.Context) error {
		return p.work(ctx, c, apiAddr, settings, checks, Deps{Log: log, Registry: Registerer(registry, p.Name)})
	}
	return RunStages(ctx, Stage{"run", work}, Stage{"admin port", adminPort.Run})
}

// work connects, builds the service and runs it with its API. Addresses that
// can never work are found before the wait for the database.
func (p Program[C]) work(ctx context.Context, c Connection, apiAddr string, settings C, checks *admin.Checks, d Deps) (err error) {
	options := database.Options{Schema: p.Name, MaxConns: c.DBConns}
	if d.Broker, err = broker.Connect(broker.Config{URL: c.NATSURL, Name: "pillarbox-" + p.Name}, d.Log); err != nil {
		return err
	}
	defer d.Broker.Close()
	if d.DB, err = database.Open(c.DatabaseURL, options); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.DB.Close()) }()
	migrateURL := c.MigrateURL
	if migrateURL == "" {
		migrateURL = c.DatabaseURL
	}
	if err := Migrate(ctx, migrateURL, p.Migrations, options, d.Log); err != nil {
		return err
	}

	subjects := []Subject{{Name: p.Name, Migrations: p.Migrations, Settings: settings, DB: d.DB, Broker: d.Broker}}
	look := Look{Monitor: c.NATSMonitor}
	if c.Strict {
		if err := p.refuse(ctx, c, subjects, look, d.Log); err != nil {
			return err
		}
	}
	service, err := p.New(settings, d)
	if err != nil {
		return err
	}
	stages := []Stage{{"service", service.Run}}
	if !c.Strict {
		stages = append([]Stage{Warn(subjects, look, d.Log, nil)}, stages...)
	}
	if handler := service.Handler(); handler != nil {
		api, err := httpserver.Listen(httpserver.Config{Addr: apiAddr}, handler, d.Log)
		if err != nil {
			return fmt.Errorf("api port: %w", err)
		}
		stages = append([]Stage{{"api port", api.Run}}, stages...)
		d.Log.InfoContext(ctx, "serving", logs.Address, api.Addr())
	}
	Watch(checks, p.Name, service)
	MountAccount(checks, p.Name, settings, d)
	// Who routes by readiness sends nothing new from the moment of the stop.
	forget := context.AfterFunc(ctx, func() { checks.Set("process", stopping) })
	defer forget()
	d.Log.InfoContext(ctx, "started")
	defer logStopped(ctx, d.Log)
	return RunStages(ctx, stages...)
}

// refuse is Refuse on a connection of its own: what it tries out and is refused is not worth a line in the log.
func (p Program[C]) refuse(ctx context.Context, c Connection, subjects []Subject, l Look, log *slog.Logger) error {
	conn, err := broker.Connect(broker.Config{URL: c.NATSURL, Name: "pillarbox-" + p.Name}, logs.Discard())
	if err != nil {
		return err
	}
	defer conn.Close()
	own := subjects[0]
	own.Broker = conn
	return Refuse(ctx, []Subject{own}, l, log, nil)
}

func stopping(context.Context) error { return errors.New("stopping") }

func logStopped(ctx context.Context, log *slog.Logger) {
	log.InfoContext(context.WithoutCancel(ctx), "stopped")
}

// health asks a running service for its readiness.
func health(adminAddr string) error {
	// A service that listens on every address is asked on the loopback.
	switch host, port, err := net.SplitHostPort(adminAddr); {
	case err != nil:
		return fmt.Errorf("admin address: %w", err)
	case host == "" || host == "0.0.0.0":
		adminAddr = net.JoinHostPort("127.0.0.1", port)
	case host == "::":
		adminAddr = net.JoinHostPort("::1", port)
	}
	client := http.Client{Timeout: 3 * time.Second}
	answer, err := client.Get("http://" + adminAddr + "/ready")
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode == http.StatusOK {
		return nil
	}
	why, err := io.ReadAll(io.LimitReader(answer.Body, 4<<10))
	if err != nil {
		return fmt.Errorf("read answer: %w", err)
	}
	return fmt.Errorf("%s: %s", answer.Status, why)
}
