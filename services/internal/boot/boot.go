// Package boot starts a process: settings from flags and environment, signals,
// the wait for database and broker, the admin port, and an orderly stop. The
// five programs use it and hold nothing else.
//
// A process that waits for its database is live but not ready. It stops on
// SIGINT or SIGTERM: first the HTTP port drains, then the service, then its
// connections close. A second signal ends it at once, which costs nothing but
// redelivery.
package boot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/pillarbox/pillarbox/shared/admin"
	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/consumer"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/logs"
	"github.com/pillarbox/pillarbox/shared/operate"
)

// Deps are what every service borrows from its process.
type Deps struct {
	DB       *database.DB
	Broker   *broker.Conn
	Log      *slog.Logger
	Registry prometheus.Registerer
}

// Service is one service as its process sees it.
type Service interface {
	// Handler is the HTTP API, or nil.
	Handler() http.Handler
	// Run works until ctx ends, then drains.
	Run(ctx context.Context) error
	// Ready reports why the service cannot do its work now, or nil.
	Ready(ctx context.Context) error
}

// Watch puts a service on the admin port: whether it is ready, its note, and what operators may do with its
// parked events and dead letters, when it has these.
func Watch(checks *admin.Checks, name string, s Service) {
	checks.Set(name, s.Ready)
	if n, ok := s.(interface{ Note() string }); ok {
		checks.Note(name, n.Note)
	}
	if o, ok := s.(interface{ Operator() *consumer.Operator }); ok {
		checks.Mount(name, operate.Handler(o.Operator()))
	}
	if a, ok := s.(interface{ Admin() http.Handler }); ok {
		checks.Mount(name, a.Admin())
	}
}

// Logging are the settings of a process's log.
type Logging struct {
	Level  slog.Level `name:"log-level" env:"PILLARBOX_LOG_LEVEL" default:"info" help:"Least level of log lines: debug, info, warn or error."`
	Format string     `name:"log-format" env:"PILLARBOX_LOG_FORMAT" default:"text" enum:"text,json" help:"Form of log lines: text or json."`
}

// Logger returns the process's logger, on standard error.
func (l Logging) Logger() *slog.Logger { return logs.New(os.Stderr, l.Format, l.Level) }

// SignalContext ends at the first SIGINT or SIGTERM; the second one has its
// usual effect.
func SignalContext() context.Context {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx
}

// Registerer prefixes metric names with pillarbox_<service>_.
func Registerer(r prometheus.Registerer, service string) prometheus.Registerer {
	return prometheus.WrapRegistererWithPrefix("pillarbox_"+service+"_", r)
}

// waitLine is the time between two log lines of a wait.
const waitLine = 5 * time.Second

// Migrate applies the service's migrations, and waits with one line every few
// seconds while the database cannot be reached. It fails at once on an error
// that waiting does not mend.
func Migrate(ctx context.Context, url string, files fs.FS, o database.Options, log *slog.Logger) error {
	var lastLine time.Time
	attempt := func() (struct{}, error) {
		err := database.Migrate(ctx, url, files, o)
		switch class := database.Classify(err); {
		case err == nil:
			return struct{}{}, nil
		case class != database.ClassUnavailable && class != database.ClassConflict:
			return struct{}{}, backoff.Permanent(err)
		}
		if time.Since(lastLine) >= waitLine {
			lastLine = time.Now()
			log.WarnContext(ctx, "waiting for the database", logs.Error, oneLine(err))
		}
		return struct{}{}, err
	}
	pace := backoff.NewExponentialBackOff()
	pace.InitialInterval, pace.MaxInterval = 100*time.Millisecond, time.Second
	_, err := backoff.Retry(ctx, attempt, backoff.WithBackOff(pace), backoff.WithMaxElapsedTime(0))
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if err != nil {
		return fmt.Errorf("apply migrations: %w", err)
	}
	return nil
}

// Exit ends the process: status 0 for nil or an asked-for stop, else 1 with one
// line on standard error. An error with a method ExitStatus() int has that one.
func Exit(program string, err error) {
	if onlyCanceled(err) {
		os.Exit(0)
	}
	fmt.Fprintf(os.Stderr, "%s: %s\n", program, oneLine(err))
	status := 1
	// Not kong's ExitCoder: a mistake on the command line would end with its 80.
	var other interface{ ExitStatus() int }
	if errors.As(err, &other) {
		status = other.ExitStatus()
	}
	os.Exit(status)
}
