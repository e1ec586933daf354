package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/pillarbox/pillarbox/services/internal/boot"
	"github.com/pillarbox/pillarbox/services/mailer/mailersvc"
	"github.com/pillarbox/pillarbox/services/suite/all"
	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/doctor"
	"github.com/pillarbox/pillarbox/shared/logs"
)

// examineSeparate looks at the services' databases, their broker and the pickup folder as each service sees them.
func (c *Command) examineSeparate(ctx context.Context, s all.Settings, l *look) error {
	l.unused = []doctor.Check{doctor.SQLite}
	connections, admins := map[string]boot.Connection{}, map[string]string{}
	for _, e := range l.entries(s) {
		connection, err := c.connection(e.Name)
		if err != nil {
			return err
		}
		connections[e.Name], admins[e.Name] = connection, connection.Admin
	}
	how := boot.Look{Monitor: c.Monitor, Deep: true, Slow: l.slow(ctx, s, admins)}
	for _, e := range l.entries(s) {
		c.examineService(ctx, e, connections[e.Name], how, l)
	}
	boot.Compare(subjects(s), &l.Report)
	return nil
}

// connection is what the service's environment says, and what the command line says instead.
func (c *Command) connection(service string) (boot.Connection, error) {
	var target struct {
		boot.Connection `embed:""`
	}
	vars := kong.Vars{"ENV": "PILLARBOX_" + strings.ToUpper(service), "admin": all.AdminAddress(service)}
	if err := parseEnv(&target, vars); err != nil {
		return target.Connection, err
	}
	if c.DatabaseURL != "" {
		target.DatabaseURL = c.DatabaseURL
	}
	if c.NATSURL != "" {
		target.NATSURL = c.NATSURL
	}
	return target.Connection, nil
}

func (c *Command) examineService(ctx context.Context, e all.Entry, connection boot.Connection, how boot.Look, l *look) {
	subject := boot.Subject{Name: e.Name, Migrations: e.Migrations, Settings: e.Settings}
	r := l.Of(e.Name)
	db, err := openDatabase(ctx, e.Name, connection.DatabaseURL)
	if err != nil {
		for _, check := range []doctor.Check{doctor.Postgres, doctor.Rights, doctor.Clock, doctor.Schema} {
			r.Miss(check, "PostgreSQL", err)
		}
		if mailer, ok := e.Settings.(mailersvc.Config); ok {
			mailer.Miss(err, r)
		}
	} else {
		defer func() { _ = db.Close() }() // nothing was written
		subject.DB = db
	}
	conn, err := openBroker(ctx, e.Name, connection.NATSURL)
	if err != nil {
		for _, check := range []doctor.Check{doctor.Copies, doctor.Discard, doctor.Deadline, doctor.Rights, doctor.Clock} {
			r.Miss(check, "NATS", err)
		}
	} else {
		defer conn.Close()
		subject.Broker = conn
	}
	boot.Examine(ctx, subject, how, &l.Report)
}

func openDatabase(ctx context.Context, service, url string) (*database.DB, error) {
	if !strings.HasPrefix(url, "postgres") {
		return nil, fmt.Errorf("PILLARBOX_%s_DATABASE_URL or PILLARBOX_DATABASE_URL must be set to postgres://user:password@host:port/name",
			strings.ToUpper(service))
	}
	db, err := database.Open(url, database.Options{Schema: service, MaxConns: 1, Application: "pillarbox-doctor"})
	if err != nil {
		return nil, err
	}
	// Not Ping: a standby that takes no writes can be looked at.
	if _, err := db.Now(ctx); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

func openBroker(ctx context.Context, service, url string) (*broker.Conn, error) {
	// The name makes the inboxes that the service's permissions allow.
	conn, err := broker.Connect(broker.Config{URL: url, Name: "pillarbox-" + service}, logs.Discard())
	if err != nil {
		return nil, errors.New("the NATS address is not nats://user:password@host:port, or several of these separated by commas")
	}
	if err := awaited(ctx, conn); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}
