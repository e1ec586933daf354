// Package inprocess runs the four services in one process: a SQLite file each,
// an embedded NATS server, one HTTP address. It is the same code as the separate
// programs run; only connections differ.
//
// A folder belongs to one suite at a time. A crash leaves it as a power loss
// would: databases and broker recover what they had confirmed, and the next
// start goes on.
package inprocess

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/pillarbox/pillarbox/services/internal/boot"
	"github.com/pillarbox/pillarbox/services/suite/all"
	"github.com/pillarbox/pillarbox/shared/admin"
	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/broker/embedded"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/doctor"
	"github.com/pillarbox/pillarbox/shared/httpserver"
	"github.com/pillarbox/pillarbox/shared/logs"
)

// Config of Start.
type Config struct {
	Data     string // folder; created when missing
	HTTP     string // listen address of the API
	Admin    string // listen address of the admin port
	Settings all.Settings
	// Strict: nothing starts when the checks of suite doctor find something wrong.
	Strict bool
}

// Suite is a running suite.
type Suite struct {
	http, admin string
	done        chan struct{} // closed after err is set
	err         error
}

// startTimeout bounds the time to readiness; without it a start that hangs
// would be silent.
const startTimeout = 30 * time.Second

// HTTP is the API's address.
func (s *Suite) HTTP() string { return s.http }

// Admin is the admin port's address.
func (s *Suite) Admin() string { return s.admin }

// Wait returns when the suite has stopped, with what went wrong.
func (s *Suite) Wait() error {
	<-s.done
	return s.err
}

// parts is what Start opens, and what closes again in reverse order.
type parts struct {
	closers []func() error
}

func (p *parts) add(closer func() error) { p.closers = append(p.closers, closer) }

func (p *parts) close() error {
	var errs []error
	for i := len(p.closers) - 1; i >= 0; i-- {
		errs = append(errs, p.closers[i]())
	}
	return errors.Join(errs...)
}

// Start starts the suite and returns once it is ready. It stops when ctx ends;
// Wait tells when that is done.
func Start(ctx context.Context, c Config, log *slog.Logger) (*Suite, error) {
	ctx, cancel := context.WithCancel(ctx)
	var opened parts
	checks := &admin.Checks{}
	s, stages, err := assemble(ctx, c, log, checks, &opened)
	if err != nil {
		cancel()
		return nil, errors.Join(err, opened.close())
	}
	go func() {
		defer close(s.done)
		defer cancel()
		s.err = errors.Join(boot.RunStages(ctx, stages...), opened.close())
	}()
	if err := s.waitReady(ctx, checks); err != nil {
		cancel()
		return nil, errors.Join(err, s.Wait())
	}
	return s, nil
}

// assemble opens everything under the folder and returns the stages to run.
func assemble(ctx context.Context, c Config, log *slog.Logger, checks *admin.Checks, opened *parts) (*Suite, []boot.Stage, error) {
	if c.Data == "" {
		return nil, nil, errors.New("data folder: no name")
	}
	dir, err := filepath.Abs(c.Data)
	if err != nil {
		return nil, nil, fmt.Errorf("data folder: %w", err)
	}
	c.Data = dir
	if err := os.MkdirAll(c.Data, 0o755); err != nil {
		return nil, nil, fmt.Errorf("data folder: %w", err)
	}
	folder, err := lockFolder(c.Data)
	if err != nil {
		return nil, nil, err
	}
	opened.add(folder.release)

	registry := admin.NewRegistry()
	adminPort, err := httpserver.Listen(httpserver.Config{Addr: c.Admin}, admin.Handler(checks, registry), log)
	if err != nil {
		return nil, nil, fmt.Errorf("admin port: %w", err)
	}
	opened.add(adminPort.Close)
	run := RunFile{PID: os.Getpid(), StartedAt: time.Now().UTC(), Admin: adminPort.Addr(), NATSToken: rand.Text()}
	server, err := embedded.Start(ctx, embedded.Config{Dir: filepath.Join(c.Data, "nats"), Token: run.NATSToken}, log)
	if err != nil {
		return nil, nil, fmt.Errorf("embedded broker: %w", err)
	}
	opened.add(func() error { server.Stop(); return nil })

	services, subjects, err := buildServices(ctx, c, broker.Config{Server: server, Token: run.NATSToken}, checks, func(service string) boot.Deps {
		return boot.Deps{Log: log.With(logs.Service, service), Registry: boot.Registerer(registry, service)}
	}, opened)
	if err != nil {
		return nil, nil, err
	}
	examineFolder := func(r *doctor.Report) { ExamineFolder(c.Data, r) }
	if c.Strict {
		if err := boot.Refuse(ctx, subjects, boot.Look{Syncs: true}, log, examineFolder); err != nil {
			return nil, nil, err
		}
	}
	handler, err := all.Handler(services)
	if err != nil {
		return nil, nil, err
	}
	api, err := httpserver.Listen(httpserver.Config{Addr: c.HTTP}, handler, log)
	if err != nil {
		return nil, nil, fmt.Errorf("api port: %w", err)
	}
	opened.add(api.Close)
	run.HTTP, run.NATSURL = api.Addr(), server.ClientURL()
	if err := run.write(c.Data); err != nil {
		return nil, nil, err
	}
	opened.add(func() error {
		if !folder.held() { // it would be another suite's
			return nil
		}
		return removeRunFile(c.Data)
	})

	stages := []boot.Stage{{Name: "data folder", Run: folder.watch}, {Name: "api port", Run: api.Run}}
	if !c.Strict {
		stages = append(stages, boot.Warn(subjects, boot.Look{Syncs: true}, log, examineFolder))
	}
	for _, name := range all.Names() {
		stages = append(stages, boot.Stage{Name: name, Run: services[name].Run})
	}
	stages = append(stages, boot.Stage{Name: "embedded broker", Run: server.Run}, boot.Stage{Name: "admin port", Run: adminPort.Run})
	return &Suite{http: api.Addr(), admin: adminPort.Addr(), done: make(chan struct{})}, stages, nil
}

// buildServices opens the four databases at once, since each waits for its own
// disk flushes, and builds the services on them.
func buildServices(ctx context.Context, c Config, connection broker.Config, checks *admin.Checks, deps func(string) boot.Deps, opened *parts) (map[string]boot.Service, []boot.Subject, error) {
	if c.Settings.Mailer.Pickup == "" {
		c.Settings.Mailer.Pickup = filepath.Join(c.Data, "pickup")
	}
	entries := c.Settings.Entries()
	databases := make([]*database.DB, len(entries))
	open, openCtx := errgroup.WithContext(ctx)
	for i, e := range entries {
		open.Go(func() (err error) {
			url := "sqlite:" + filepath.Join(c.Data, e.Name+".db")
			options := database.Options{Schema: e.Name}
			if err := database.Migrate(openCtx, url, e.Migrations, options); err != nil {
				return fmt.Errorf("%s: apply migrations: %w", e.Name, err)
			}
			databases[i], err = database.Open(url, options)
			return err
		})
	}
	err := open.Wait()
	for _, db := range databases {
		if db != nil {
			opened.add(db.Close)
		}
	}
	if err != nil {
		return nil, nil, err
	}

	services, subjects := map[string]boot.Service{}, []boot.Subject{}
	for i, e := range entries {
		d := deps(e.Name)
		d.DB = databases[i]
		connection.Name = "pillarbox-" + e.Name
		if d.Broker, err = broker.Connect(connection, d.Log); err != nil {
			return nil, nil, err
		}
		connected := d.Broker
		opened.add(func() error { connected.Close(); return nil })
		if services[e.Name], err = e.New(d); err != nil {
			return nil, nil, err
		}
		subjects = append(subjects, boot.Subject{
			Name: e.Name, Migrations: e.Migrations, Settings: e.Settings, DB: d.DB, Broker: d.Broker,
		})
		boot.Watch(checks, e.Name, services[e.Name])
		boot.MountAccount(checks, e.Name, e.Settings, d)
	}
	return services, subjects, nil
}

// waitReady returns when every check passes, or with what hinders it.
func (s *Suite) waitReady(ctx context.Context, checks *admin.Checks) error {
	late := time.NewTimer(startTimeout)
	defer late.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		failing := checks.Failing(ctx)
		if len(failing) == 0 {
			return nil
		}
		select {
		case <-s.done:
			return errors.New("stopped before it was ready")
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-late.C:
			return fmt.Errorf("not ready after %s: %v", startTimeout, failing)
		case <-tick.C:
		}
	}
}
