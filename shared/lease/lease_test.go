package lease_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
	"github.com/pillarbox/pillarbox/shared/lease"
	"github.com/pillarbox/pillarbox/shared/logs"
)

const patience = time.Minute

// replica is one Lease that leads until it is told to stop.
type replica struct {
	terms chan int64 // each term it began to lead
	lost  chan error // the cause of each end
	stop  func()     // ends Run and waits for it
	lease *lease.Lease
}

func start(t *testing.T, db *database.DB, holder string, ttl time.Duration) *replica {
	t.Helper()
	l, err := lease.New(lease.Config{Name: "relay", Holder: holder, TTL: ttl}, db, logs.Discard())
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	r := &replica{terms: make(chan int64, 100), lost: make(chan error, 100), lease: l}
	ended := make(chan error, 1)
	go func() {
		ended <- l.Run(ctx, func(ctx context.Context, term int64) error {
			r.terms <- term
			<-ctx.Done()
			r.lost <- context.Cause(ctx)
			return ctx.Err()
		})
	}()
	r.stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-ended)
	})
	t.Cleanup(r.stop)
	return r
}

func next[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		require.FailNow(t, "nothing came in time")
		panic("unreachable")
	}
}

func check(ctx context.Context, db *database.DB, term int64) error {
	return db.Tx(ctx, func(ctx context.Context, tx *database.Tx) error {
		return lease.Check(ctx, tx, "relay", term)
	})
}

func TestHandOverIsImmediateAndRaisesTheTerm(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "store", func(t *testing.T, db *database.DB) {
		first := start(t, db, "a", time.Second)
		term := next(t, first.terms)
		require.Equal(t, int64(1), term)
		second := start(t, db, "b", time.Second)
		if !db.Dialect().Postgres() { // a newcomer on SQLite does not wait, so the two change places first
			require.ErrorIs(t, next(t, first.lost), lease.ErrLost)
			first, second, term = second, first, next(t, second.terms)
		}
		require.NoError(t, check(t.Context(), db, term))
		began := time.Now()
		first.stop()
		require.Greater(t, next(t, second.terms), term)
		require.Less(t, time.Since(began), 500*time.Millisecond)
		require.ErrorIs(t, check(t.Context(), db, term), lease.ErrLost)
		require.ErrorIs(t, next(t, first.lost), context.Canceled, "the end of ctx is no loss")
	})
}

func TestTakesOverAfterExpiry(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "store", func(t *testing.T, db *database.DB) {
		plant(t, db, "dead", 41, time.Second)
		began := time.Now()
		r := start(t, db, "b", 0)
		require.Equal(t, int64(42), next(t, r.terms))
		if db.Dialect().Postgres() {
			require.GreaterOrEqual(t, time.Since(began), 900*time.Millisecond)
		} else {
			require.Less(t, time.Since(began), 500*time.Millisecond, "a new process on a SQLite folder need not wait")
		}
	})
}

func TestOwnRowIsTakenAtOnce(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "store", func(t *testing.T, db *database.DB) {
		plant(t, db, "a", 7, time.Hour)
		require.Equal(t, int64(8), next(t, start(t, db, "a", 0).terms))
	})
}

// plant writes the row as a leader without a process would have left it.
func plant(t *testing.T, db *database.DB, holder string, term int64, left time.Duration) {
	t.Helper()
	require.NoError(t, db.Tx(t.Context(), func(ctx context.Context, tx *database.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO leases (name, holder, term, expires_at)
			VALUES ('relay', $1, $2, `+tx.Dialect().Now()+` + $3)`, holder, term, left.Microseconds())
		return err
	}))
}

func TestLeaderStaysLeaderByRenewing(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "store", func(t *testing.T, db *database.DB) {
		const ttl = time.Second // long enough for a busy machine
		a := start(t, db, "a", ttl)
		term := next(t, a.terms)
		renewed := func() int64 {
			var at int64
			require.NoError(t, db.Read().QueryRowContext(t.Context(), `SELECT expires_at FROM leases`).Scan(&at))
			return at
		}
		first := renewed()
		require.Eventually(t, func() bool { return renewed() > first+ttl.Microseconds() }, patience, ttl/20)
		require.NoError(t, check(t.Context(), db, term))
		require.Empty(t, a.lost)
	})
}

// Many replicas with a short lease, each giving up the lead again and again:
// every term is led once.
func TestNoTermIsLedTwice(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "store", func(t *testing.T, db *database.DB) {
		const replicas, terms = 4, 30
		ctx, cancel := context.WithCancel(t.Context())
		var led sync.Map
		var count, twice atomic.Int64
		var wg sync.WaitGroup
		for i := range replicas {
			l, err := lease.New(lease.Config{
				Name: "relay", Holder: string(rune('a' + i)), TTL: time.Second, Poll: 2 * time.Millisecond,
			}, db, logs.Discard())
			require.NoError(t, err)
			wg.Go(func() {
				_ = l.Run(ctx, func(ctx context.Context, term int64) error {
					if _, again := led.LoadOrStore(term, i); again {
						twice.Add(1)
					}
					if count.Add(1) >= terms {
						cancel()
					}
					return check(ctx, db, term)
				})
			})
		}
		wg.Wait()
		cancel()
		require.Zero(t, twice.Load())
		require.GreaterOrEqual(t, count.Load(), int64(terms))
	})
}

func TestFailedLeaderIsCalledAgain(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "store", func(t *testing.T, db *database.DB) {
		l, err := lease.New(lease.Config{Name: "relay", Holder: "a"}, db, logs.Discard())
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var terms []int64
		require.NoError(t, l.Run(ctx, func(_ context.Context, term int64) error {
			terms = append(terms, term)
			if len(terms) == 3 {
				cancel()
			}
			return errors.New("broken")
		}))
		require.Equal(t, []int64{1, 2, 3}, terms)
	})
}

func TestLeaseIsKeptWhileTheLeaderFinishes(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "store", func(t *testing.T, db *database.DB) {
		const ttl = time.Second
		l, err := lease.New(lease.Config{Name: "relay", Holder: "a", TTL: ttl}, db, logs.Discard())
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		held := func() bool {
			var ok int64
			query := `SELECT CASE WHEN expires_at > ` + db.Dialect().Now() + ` THEN 1 ELSE 0 END FROM leases`
			require.NoError(t, db.Read().QueryRowContext(t.Context(), query).Scan(&ok))
			return ok == 1
		}
		require.NoError(t, l.Run(ctx, func(context.Context, int64) error {
			cancel()
			for end := time.Now().Add(ttl * 3 / 2); time.Now().Before(end); {
				if !held() {
					return errors.New("lease was not kept")
				}
			}
			return nil
		}))
		require.False(t, held(), "given back at the end")
	})
}

func TestPokeWakesAFollower(t *testing.T) {
	t.Parallel()
	db, _ := databasetest.Postgres(t, "store") // a newcomer on SQLite is no follower
	plant(t, db, "other", 1, time.Hour)
	l, err := lease.New(lease.Config{Name: "relay", Holder: "b", Poll: time.Hour}, db, logs.Discard())
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	terms, ended := make(chan int64, 1), make(chan error, 1)
	go func() {
		ended <- l.Run(ctx, func(ctx context.Context, term int64) error {
			terms <- term
			<-ctx.Done()
			return nil
		})
	}()
	_, err = db.Read().ExecContext(t.Context(), `UPDATE leases SET expires_at = 0`)
	require.NoError(t, err)
	require.Eventually(t, func() bool { l.Poke(); return len(terms) > 0 }, patience, 5*time.Millisecond)
	cancel()
	require.NoError(t, <-ended)
}

func TestNewListsAllThatIsWrong(t *testing.T) {
	t.Parallel()
	_, err := lease.New(lease.Config{TTL: time.Millisecond, Poll: -1}, nil, nil)
	require.ErrorContains(t, err, "name")
	require.ErrorContains(t, err, "holder")
	require.ErrorContains(t, err, "TTL")
	require.ErrorContains(t, err, "poll")
}
