// Package all is the list of the services that the suite runs in one process.
package all

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/pillarbox/pillarbox/migrations"
	"github.com/pillarbox/pillarbox/services/audit/auditsvc"
	"github.com/pillarbox/pillarbox/services/internal/boot"
	"github.com/pillarbox/pillarbox/services/loyalty/loyaltysvc"
	"github.com/pillarbox/pillarbox/services/mailer/mailersvc"
	"github.com/pillarbox/pillarbox/services/store/storesvc"
	"github.com/pillarbox/pillarbox/shared/consumer"
	"github.com/pillarbox/pillarbox/shared/database"
)

// Settings are the settings of all services, as each service's own program
// takes them.
type Settings struct {
	Store   storesvc.Config   `embed:"" prefix:"store-"`
	Mailer  mailersvc.Config  `embed:"" prefix:"mailer-"`
	Audit   auditsvc.Config   `embed:"" prefix:"audit-"`
	Loyalty loyaltysvc.Config `embed:"" prefix:"loyalty-"`
}

// Validate reports the problems of all services' settings.
func (s Settings) Validate() error {
	return errors.Join(s.Store.Validate(), s.Mailer.Validate(), s.Audit.Validate(), s.Loyalty.Validate(), s.checkKeep())
}

// checkKeep: nobody may forget what the store can publish again. (Separate services learn the horizon from the store and
// remove nothing until it fits.)
func (s Settings) checkKeep() error {
	var errs []error
	for name, keep := range map[string]time.Duration{"MAILER": s.Mailer.Remembers(), "LOYALTY": s.Loyalty.Remembers()} {
		if err := consumer.CheckKeep(keep, s.Store.ReplayHorizon()); err != nil {
			errs = append(errs, fmt.Errorf("PILLARBOX_%s_KEEP: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// Entry is one service of the list.
type Entry struct {
	Name       string
	Migrations fs.FS
	Settings   any // the service's Config
	New        func(boot.Deps) (boot.Service, error)
}

// Names are the names of all services.
func Names() []string {
	return []string{storesvc.Name, mailersvc.Name, auditsvc.Name, loyaltysvc.Name}
}

// Operators are the services with parked events and dead letters, by name: what a person may do with these on a
// database that no service works on.
func Operators() map[string]func(*database.DB, *slog.Logger) *consumer.Operator {
	return map[string]func(*database.DB, *slog.Logger) *consumer.Operator{
		mailersvc.Name: mailersvc.Operator, auditsvc.Name: auditsvc.Operator, loyaltysvc.Name: loyaltysvc.Operator,
	}
}

// AdminAddress is the default admin address of a service's own program.
func AdminAddress(service string) string {
	return map[string]string{
		storesvc.Name: "127.0.0.1:9080", auditsvc.Name: "127.0.0.1:9081", loyaltysvc.Name: "127.0.0.1:9082", mailersvc.Name: "127.0.0.1:9083",
	}[service]
}

// Entries returns the services, the one that takes work in first: they are
// stopped in this order.
func (s Settings) Entries() []Entry {
	build := map[string]func(boot.Deps) (boot.Service, error){
		storesvc.Name:   func(d boot.Deps) (boot.Service, error) { return storesvc.New(s.Store, storesvc.Deps(d)) },
		mailersvc.Name:  func(d boot.Deps) (boot.Service, error) { return mailersvc.New(s.Mailer, mailersvc.Deps(d)) },
		auditsvc.Name:   func(d boot.Deps) (boot.Service, error) { return auditsvc.New(s.Audit, auditsvc.Deps(d)) },
		loyaltysvc.Name: func(d boot.Deps) (boot.Service, error) { return loyaltysvc.New(s.Loyalty, loyaltysvc.Deps(d)) },
	}
	settings := map[string]any{storesvc.Name: s.Store, mailersvc.Name: s.Mailer, auditsvc.Name: s.Audit, loyaltysvc.Name: s.Loyalty}
	var entries []Entry
	for _, name := range Names() {
		entries = append(entries, Entry{Name: name, Migrations: migrations.Of(name), Settings: settings[name], New: build[name]})
	}
	return entries
}

// Handler puts the APIs of the services, by name, on one address: /audit… and
// /loyalty… are theirs, everything else is the store's. It is no ServeMux, whose
// redirects of unclean paths are not problem documents.
func Handler(services map[string]boot.Service) (http.Handler, error) {
	apis := map[string]http.Handler{}
	for _, name := range []string{storesvc.Name, auditsvc.Name, loyaltysvc.Name} {
		service, ok := services[name]
		if !ok {
			return nil, fmt.Errorf("service %s is missing", name)
		}
		apis[name] = service.Handler()
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		first, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
		api, ok := apis[first]
		if !ok || first == storesvc.Name {
			api = apis[storesvc.Name]
		}
		api.ServeHTTP(w, r)
	}), nil
}
