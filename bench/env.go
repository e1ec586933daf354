package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pillarbox/pillarbox/migrations"
	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/broker/embedded"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/logs"
)

// env is what all targets share.
type env struct {
	settings
	dir      string
	made     bool // dir is ours
	verdicts []string
}

func newEnv(s settings) (*env, error) {
	if s.Rounds < 1 || s.Scale < 1 || s.Scale > 1000 {
		return nil, errors.New("rounds must be 1 or more, scale 1 to 1000")
	}
	e := &env{settings: s, dir: s.Dir}
	if e.dir == "" {
		dir, err := os.MkdirTemp("", "pillarbox-bench-")
		if err != nil {
			return nil, err
		}
		e.dir, e.made = dir, true
	}
	return e, nil
}

func (e *env) close() {
	if e.made {
		_ = os.RemoveAll(e.dir) // a scratch folder
	}
}

// amount scales a standard amount of work.
func (e *env) amount(n int) int { return max(1, n*e.Scale/100) }

// atLeast notes the line of a target that wants a ratio or a figure as high as want.
func (e *env) atLeast(target, what string, got, want float64) {
	e.verdict(target, what, got, ">=", want, got >= want)
}

// atMost notes the line of a target that wants it as low as want.
func (e *env) atMost(target, what string, got, want float64) {
	e.verdict(target, what, got, "<=", want, got <= want)
}

func (e *env) verdict(target, what string, got float64, relation string, want float64, ok bool) {
	word := "ok"
	if !ok {
		word = "short"
	}
	line := fmt.Sprintf("%s %s ratio=%.2f target%s%.2f %s", target, what, got, relation, want, word)
	fmt.Println(line)
	e.verdicts = append(e.verdicts, line)
}

var serial atomic.Int64

// folder returns a new empty folder.
func (e *env) folder(name string) (string, error) {
	dir := filepath.Join(e.dir, fmt.Sprintf("%s-%d", name, serial.Add(1)))
	return dir, os.MkdirAll(dir, 0o755)
}

// postgres makes a database with the service's schema and returns its URL; drop removes it.
func (e *env) postgres(ctx context.Context, service string) (address string, drop func(), err error) {
	if e.Postgres == "" {
		return "", nil, errors.New("PILLARBOX_TEST_POSTGRES_URL is not set; \"make bench\" sets it")
	}
	config, err := pgx.ParseConfig(e.Postgres)
	if err != nil {
		return "", nil, err
	}
	admin, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return "", nil, err
	}
	defer admin.Close(ctx)
	name := fmt.Sprintf("pillarbox_bench_%d_%d", os.Getpid(), serial.Add(1))
	if _, err := admin.Exec(ctx, "CREATE DATABASE "+name); err != nil {
		return "", nil, err
	}
	drop = func() {
		ctx := context.WithoutCancel(ctx)
		c, err := pgx.ConnectConfig(ctx, config)
		if err == nil {
			_, err = c.Exec(ctx, "DROP DATABASE "+name+" WITH (FORCE)")
			_ = c.Close(ctx)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "bench: database is left behind:", name, err)
		}
	}
	if address, err = withDatabase(e.Postgres, name); err != nil {
		drop()
		return "", nil, err
	}
	if err := database.Migrate(ctx, address, migrations.Of(service), database.Options{Schema: service}); err != nil {
		drop()
		return "", nil, err
	}
	return address, drop, nil
}

func withDatabase(server, name string) (string, error) {
	u, err := url.Parse(server)
	if err != nil {
		return "", err
	}
	u.Path = "/" + name
	return u.String(), nil
}

// open makes a database of the given engine with the service's schema.
func (e *env) open(ctx context.Context, engine, service string) (db *database.DB, address string, done func(), err error) {
	drop := func() {}
	if engine == "sqlite" {
		dir, err := e.folder(service)
		if err != nil {
			return nil, "", nil, err
		}
		address = "sqlite:" + filepath.Join(dir, service+".db")
		if err := database.Migrate(ctx, address, migrations.Of(service), database.Options{}); err != nil {
			return nil, "", nil, err
		}
	} else if address, drop, err = e.postgres(ctx, service); err != nil {
		return nil, "", nil, err
	}
	db, err = database.Open(address, database.Options{Schema: service})
	if err != nil {
		drop()
		return nil, "", nil, err
	}
	return db, address, func() { _ = db.Close(); drop() }, nil
}

// pool is a bare pgx pool whose sessions see the service's schema.
func pool(ctx context.Context, address, schema string, size int32) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(address)
	if err != nil {
		return nil, err
	}
	config.MaxConns, config.MinConns = size, size
	config.ConnConfig.RuntimeParams["search_path"] = schema
	return pgxpool.NewWithConfig(ctx, config)
}

// broker starts an embedded server that fsyncs always, and connects to it.
func (e *env) broker(ctx context.Context) (*embedded.Server, *broker.Conn, func(), error) {
	dir, err := e.folder("nats")
	if err != nil {
		return nil, nil, nil, err
	}
	server, err := embedded.Start(ctx, embedded.Config{Dir: dir, MaxStore: 16 << 30}, logs.Discard())
	if err != nil {
		return nil, nil, nil, err
	}
	conn, err := broker.Connect(broker.Config{URL: server.ClientURL(), Token: server.Token()}, logs.Discard())
	if err != nil {
		server.Stop()
		return nil, nil, nil, err
	}
	return server, conn, func() { conn.Close(); server.Stop(); _ = os.RemoveAll(dir) }, nil
}
