package lease_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/migrations"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
	"github.com/pillarbox/pillarbox/shared/database/databasetest/postgres"
	"github.com/pillarbox/pillarbox/shared/lease"
)

// A leader that cannot renew stops itself before anybody else can begin.
func TestCutOffLeaderStopsInTime(t *testing.T) {
	t.Parallel()
	db, _ := databasetest.Postgres(t, "store")
	const ttl = time.Second
	a := start(t, db, "a", ttl)
	term := next(t, a.terms)
	err := db.Tx(t.Context(), func(ctx context.Context, tx *database.Tx) error {
		// Whoever holds the row like this lets nobody renew: the answer does not come.
		var expires int64
		err := tx.QueryRowContext(ctx, `SELECT expires_at FROM leases`+tx.Dialect().ForUpdate()).Scan(&expires)
		require.NoError(t, err)
		require.ErrorIs(t, next(t, a.lost), lease.ErrLost)
		now, err := db.Now(ctx)
		require.NoError(t, err)
		require.Less(t, now, database.Time(expires).Add(time.Second), "noticed long after the row expired")
		return nil
	})
	require.NoError(t, err)
	require.Greater(t, next(t, a.terms), term, "it leads again under a new term")
}

// The leader's own transactions hold the row against others, not against itself.
func TestCheckHoldsTheRowButNotRenewals(t *testing.T) {
	t.Parallel()
	db, url := databasetest.Postgres(t, "store")
	const ttl = time.Second
	a := start(t, db, "a", ttl)
	term := next(t, a.terms)
	expiry := func() (at int64) {
		require.NoError(t, db.Read().QueryRowContext(t.Context(), `SELECT expires_at FROM leases`).Scan(&at))
		return at
	}
	require.NoError(t, db.Tx(t.Context(), func(ctx context.Context, tx *database.Tx) error {
		require.NoError(t, lease.Check(ctx, tx, "relay", term))
		before := expiry()
		require.Eventually(t, func() bool { return expiry() > before }, patience, 10*time.Millisecond)
		return nil
	}))
	a.stop()
	require.NoError(t, db.Tx(t.Context(), func(ctx context.Context, tx *database.Tx) error {
		require.NoError(t, lease.Check(ctx, tx, "relay", term), "given back, but nobody else has begun")
		rival, err := database.Open(url, database.Options{Schema: "store"})
		require.NoError(t, err)
		b := start(t, rival, "b", ttl)
		t.Cleanup(func() { b.stop(); require.NoError(t, rival.Close()) })
		require.Eventually(t, func() bool {
			var waiting bool
			require.NoError(t, db.Read().QueryRowContext(ctx, `SELECT EXISTS (
				SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')`).Scan(&waiting))
			return waiting
		}, patience, 5*time.Millisecond, "the next leader waits for the commit")
		require.Empty(t, b.terms)
		return nil
	}))
}

// lines is a log that may be read while it is written.
type lines struct {
	mu  sync.Mutex // guards buf
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) count(s string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.buf.String(), s)
}

func TestOutageIsWaitedForAndLoggedOnce(t *testing.T) {
	t.Parallel()
	server, err := postgres.Start(t.Context(), postgres.Config{})
	if errors.Is(err, postgres.ErrNotFound) {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	o := database.Options{Schema: "store"}
	require.NoError(t, database.Migrate(t.Context(), server.URL(), migrations.Of("store"), o))
	db, err := database.Open(server.URL(), o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })

	var log lines
	l, err := lease.New(lease.Config{Name: "relay", Holder: "a", TTL: 500 * time.Millisecond}, db,
		slog.New(slog.NewTextHandler(&log, nil)))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	terms, lost, ended := make(chan int64, 10), make(chan error, 10), make(chan error, 1)
	go func() {
		ended <- l.Run(ctx, func(ctx context.Context, term int64) error {
			terms <- term
			<-ctx.Done()
			lost <- context.Cause(ctx)
			return ctx.Err()
		})
	}()
	term := next(t, terms)
	require.NoError(t, server.Stop(postgres.Immediate))
	require.ErrorIs(t, next(t, lost), lease.ErrLost)
	require.Eventually(t, func() bool { return log.count("trying again") > 0 }, patience, time.Millisecond)
	require.Never(t, func() bool { return log.count("lease cannot be read") > 1 }, time.Second, 50*time.Millisecond)
	require.NoError(t, server.Start(t.Context()))
	require.Greater(t, next(t, terms), term)
	require.Equal(t, 1, log.count("lease can be read again"))
	require.Empty(t, ended)

	require.NoError(t, server.Stop(postgres.Immediate))
	cancel()
	require.NoError(t, next(t, ended), "an outage does not hold up the end")
}
