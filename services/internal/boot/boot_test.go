package boot_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/internal/boot"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/logs"
)

// lines is a log that may be read while it is written.
type lines struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Split(strings.TrimSpace(l.text.String()), "\n")
}

func migration(sql string) fstest.MapFS {
	file := &fstest.MapFile{Data: []byte("-- +goose Up\n" + sql + "\n")}
	return fstest.MapFS{"postgres/0001_x.sql": file, "sqlite/0001_x.sql": file}
}

func TestMigrateWaitsForTheDatabase(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	attempts := make(chan struct{}, 100)
	accepting := make(chan struct{})
	go func() { // a port that closes each connection, as a server does that is about to start
		defer close(accepting)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
			attempts <- struct{}{}
		}
	}()
	var log lines
	ctx, cancel := context.WithCancel(t.Context())
	url := "postgres://ada:hidden@" + listener.Addr().String() + "/x?sslmode=disable"
	ended := make(chan error, 1)
	go func() {
		ended <- boot.Migrate(ctx, url, migration("SELECT 1;"), database.Options{Schema: "x"}, logs.New(&log, "text", 0))
	}()
	for range 4 {
		<-attempts
	}
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
	require.NoError(t, listener.Close())
	<-accepting
	require.Len(t, log.all(), 1, "one line for all these attempts: %s", log.all())
	require.Contains(t, log.all()[0], `msg="waiting for the database"`)
	require.NotContains(t, log.all()[0], "hidden")
	require.NotContains(t, log.all()[0], `\n`)
}

func TestMigrateFailsAtOnceWhereWaitingIsNoUse(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errors.New("it waited"))
	defer cancel()
	file := "sqlite:" + filepath.Join(t.TempDir(), "x.db")
	err := boot.Migrate(ctx, file, migration("CREATE NONSENSE;"), database.Options{}, logs.Discard())
	require.ErrorContains(t, err, "apply migrations")
	require.NoError(t, ctx.Err())
	err = boot.Migrate(ctx, "mysql://x", migration("SELECT 1;"), database.Options{}, logs.Discard())
	require.ErrorContains(t, err, "postgres://")
	require.NoError(t, ctx.Err())
	require.NoError(t, boot.Migrate(ctx, file, migration("CREATE TABLE x (id BIGINT);"), database.Options{}, logs.Discard()))
}

func TestMetricsCarryTheServicesName(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	for _, service := range []string{"mailer", "audit"} { // the same metric of two services in one process
		counter := prometheus.NewCounter(prometheus.CounterOpts{Name: "events_total", Help: "Events."})
		require.NoError(t, boot.Registerer(registry, service).Register(counter))
	}
	families, err := registry.Gather()
	require.NoError(t, err)
	require.Len(t, families, 2)
	require.Equal(t, "pillarbox_audit_events_total", families[0].GetName())
	require.Equal(t, "pillarbox_mailer_events_total", families[1].GetName())
}
