package databasetest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"net/url"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/migrations"
	"github.com/pillarbox/pillarbox/shared/database"
)

const (
	testPrefix     = "pillarbox_test_" // + seconds since 1970, for the clean-up + random text
	templatePrefix = "pillarbox_tmpl_" // + service + hash of its migrations
	leftoverAge    = 3 * time.Hour
	patience       = 2 * time.Minute // CREATE DATABASE copies files; many test processes share one server
)

func serverURL(t *testing.T) string {
	t.Helper()
	server := os.Getenv(EnvURL)
	if server == "" {
		if os.Getenv("CI") != "" {
			t.Fatalf("%s is not set: CI must run the PostgreSQL tests", EnvURL)
		}
		t.Skipf("%s is not set", EnvURL)
	}
	return server
}

// create makes a database for one test and returns its URL.
func create(t *testing.T, server, template string) string {
	t.Helper()
	name := testPrefix + strconv.FormatInt(time.Now().Unix(), 10) + "_" + strings.ToLower(rand.Text()[:12])
	require.NoError(t, admin(t.Context(), server, func(ctx context.Context, q database.Querier) error {
		return exec(ctx, q, "CREATE DATABASE "+name+" TEMPLATE "+template)
	}))
	t.Cleanup(func() {
		require.NoError(t, admin(background(t), server, func(ctx context.Context, q database.Querier) error {
			return exec(ctx, q, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)")
		}))
	})
	result, err := withDatabase(server, name)
	require.NoError(t, err)
	return result
}

// templateOf returns the name of the migrated template of service, and makes it
// when it is missing. A template that is complete is known by its name: it is
// migrated under another one.
func templateOf(ctx context.Context, server, service string) (string, error) {
	hash, err := hashOf(migrations.Of(service))
	if err != nil {
		return "", err
	}
	template := fmt.Sprintf("%s%s_%016x", templatePrefix, service, hash)
	err = admin(ctx, server, func(ctx context.Context, q database.Querier) error {
		if done, err := exists(ctx, q, template); done || err != nil {
			return err
		}
		// The lock belongs to this session, the only one of its pool. Every test
		// process connects to the same database, so it is one lock for all.
		if err := exec(ctx, q, "SELECT pg_advisory_lock(hashtext('pillarbox databasetest'))"); err != nil {
			return err
		}
		if done, err := exists(ctx, q, template); done || err != nil {
			return err
		}
		if err := dropLeftovers(ctx, q); err != nil {
			return err
		}
		return build(ctx, q, server, service, template)
	})
	return template, err
}

func build(ctx context.Context, q database.Querier, server, service, template string) error {
	raw := template + "_raw"
	if err := exec(ctx, q, "DROP DATABASE IF EXISTS "+raw+" WITH (FORCE)"); err != nil {
		return err
	}
	if err := exec(ctx, q, "CREATE DATABASE "+raw+" TEMPLATE template1"); err != nil {
		return err
	}
	url, err := withDatabase(server, raw)
	if err != nil {
		return err
	}
	if err := database.Migrate(ctx, url, migrations.Of(service), database.Options{Schema: service}); err != nil {
		return err
	}
	// Nobody may connect any more: a database with a session in it cannot be copied.
	if err := exec(ctx, q, "ALTER DATABASE "+raw+" ALLOW_CONNECTIONS false"); err != nil {
		return err
	}
	return exec(ctx, q, "ALTER DATABASE "+raw+" RENAME TO "+template)
}

// dropLeftovers removes what killed test processes left behind.
func dropLeftovers(ctx context.Context, q database.Querier) error {
	rows, err := q.QueryContext(ctx, "SELECT datname FROM pg_database WHERE datname LIKE $1", testPrefix+"%")
	if err != nil {
		return err
	}
	var old []string
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return errors.Join(err, rows.Close())
		}
		seconds, _, _ := strings.Cut(strings.TrimPrefix(name, testPrefix), "_")
		made, err := strconv.ParseInt(seconds, 10, 64)
		if err == nil && time.Since(time.Unix(made, 0)) > leftoverAge {
			old = append(old, name)
		}
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return err
	}
	for _, name := range old {
		if err := exec(ctx, q, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)"); err != nil {
			return err
		}
	}
	return nil
}

// admin calls do with one session of the server's own database.
func admin(ctx context.Context, server string, do func(context.Context, database.Querier) error) (err error) {
	db, err := database.Open(server, database.Options{MaxConns: 1, StatementTimeout: patience, Application: "databasetest"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := exec(ctx, db.Read(), "SET lock_timeout = 0"); err != nil {
		return err
	}
	return do(ctx, db.Read())
}

func exists(ctx context.Context, q database.Querier, name string) (found bool, err error) {
	err = q.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM pg_database WHERE datname = $1)", name).Scan(&found)
	return found, err
}

func exec(ctx context.Context, q database.Querier, statement string) error {
	if _, err := q.ExecContext(ctx, statement); err != nil {
		return fmt.Errorf("%s: %w", statement, err)
	}
	return nil
}

func withDatabase(server, name string) (string, error) {
	u, err := url.Parse(server)
	if err != nil {
		return "", errors.New(EnvURL + " is no valid URL")
	}
	u.Path = "/" + name
	return u.String(), nil
}

func hashOf(files fs.FS) (uint64, error) {
	h := fnv.New64a()
	err := fs.WalkDir(files, "postgres", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := fs.ReadFile(files, path)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(h, "%s %d\n%s", path, len(text), text)
		return err
	})
	return h.Sum64(), err
}
