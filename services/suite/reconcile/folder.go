package reconcile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/alecthomas/kong"

	"github.com/pillarbox/pillarbox/services/store/storesvc"
	"github.com/pillarbox/pillarbox/services/suite/all"
	"github.com/pillarbox/pillarbox/services/suite/inprocess"
	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/logs"
	"github.com/pillarbox/pillarbox/shared/reconcile"
)

// errStopped: a watcher leaves a folder without a suite to the suite.
var errStopped = errors.New("no suite runs on the folder")

// folder asks the suite that runs on the folder, or holds the folder and asks its files.
func (c *Command) folder(ctx context.Context, config reconcile.Config) (report reconcile.Report, err error) {
	attached, err := inprocess.Attach(ctx, c.Data, logs.New(c.Streams.Err, "text", slog.LevelError))
	if err != nil {
		return report, err
	}
	defer func() { err = errors.Join(err, attached.Close()) }()
	switch {
	case attached.Suite:
		return c.remote(ctx, config, []string{attached.Admin})
	case c.Every > 0:
		return report, errStopped
	case !attached.Alone:
		return report, fmt.Errorf("another command has %s open: try again when it has ended", c.Data)
	}
	return c.files(ctx, config, attached.Conn)
}

// opened are the accounts of a folder's files.
type opened struct {
	store       reconcile.Store
	subscribers []reconcile.Subscriber
	silent      []reconcile.Silence
	databases   []*database.DB
}

func (c *Command) files(ctx context.Context, config reconcile.Config, conn *broker.Conn) (report reconcile.Report, err error) {
	var settings struct {
		all.Settings `embed:""`
	}
	parser, err := kong.New(&settings, kong.Name("suite"))
	if err == nil {
		_, err = parser.Parse(nil) // fills in environment and defaults
	}
	if err != nil {
		return report, fmt.Errorf("settings: %w", err)
	}
	if settings.Mailer.Pickup == "" {
		settings.Mailer.Pickup = filepath.Join(c.Data, "pickup")
	}
	var o opened
	defer func() {
		for _, db := range o.databases {
			err = errors.Join(err, db.Close())
		}
	}()
	for _, e := range settings.Entries() {
		if err := o.open(ctx, c.Data, e, conn); err != nil {
			return report, fmt.Errorf("%s: %w", e.Name, err)
		}
	}
	if o.store == nil {
		return report, fmt.Errorf("no suite has run on %s yet", c.Data)
	}
	return reconcile.Run(ctx, config, o.store, o.subscribers, o.silent...)
}

func (o *opened) open(ctx context.Context, dir string, e all.Entry, conn *broker.Conn) error {
	path := filepath.Join(dir, e.Name+".db")
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		if e.Name != storesvc.Name {
			o.silent = append(o.silent, reconcile.Silence{Who: e.Name, Why: "its file " + e.Name + ".db is missing"})
		}
		return nil
	}
	options := database.Options{Schema: e.Name}
	// The folder may be an older release's.
	if err := database.Migrate(ctx, "sqlite:"+path, e.Migrations, options); err != nil {
		return fmt.Errorf("apply migrations: %w", err)
	}
	db, err := database.Open("sqlite:"+path, options)
	if err != nil {
		return err
	}
	o.databases = append(o.databases, db)
	switch s := e.Settings.(type) {
	case interface {
		Account(*database.DB, *broker.Conn) reconcile.Store
	}:
		o.store = s.Account(db, conn)
	case interface {
		Account(*database.DB) reconcile.Subscriber
	}:
		o.subscribers = append(o.subscribers, s.Account(db))
	}
	return nil
}
