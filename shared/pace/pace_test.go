package pace_test

import (
	"context"
	"errors"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
	"github.com/pillarbox/pillarbox/shared/pace"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = time.Minute

func newPacer(t require.TestingT, db *database.DB, c pace.Config) *pace.Pacer {
	p, err := pace.New(c, db)
	require.NoError(t, err)
	return p
}

// slow has one event left, and the next but one comes in twenty seconds.
func slow(t *testing.T, db *database.DB) *pace.Pacer {
	t.Helper()
	p := newPacer(t, db, pace.Config{Name: "slow", Rate: 0.05, Burst: 2})
	require.NoError(t, p.Wait(t.Context(), 1))
	return p
}

// waiting returns when n callers wait.
func waiting(t *testing.T, p *pace.Pacer, n int) {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	require.NoError(t, reg.Register(p))
	require.Eventually(t, func() bool {
		families, err := reg.Gather()
		require.NoError(t, err)
		for _, family := range families {
			if family.GetName() == "pace_waiting_callers" {
				return family.GetMetric()[0].GetGauge().GetValue() == float64(n)
			}
		}
		return false
	}, patience, time.Millisecond)
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	for _, c := range []pace.Config{
		{}, {Name: string(make([]byte, 65))}, {Name: "x", Rate: -1}, {Name: "x", Rate: 0.0001}, {Name: "x", Rate: 1e7},
		{Name: "x", Rate: math.NaN()}, {Name: "x", Rate: math.Inf(1)}, {Name: "x", Rate: 1, Burst: 1}, {Name: "x", Rate: 100, Burst: 19},
		{Name: "x", Rate: 1, Burst: -1}, {Name: "x", Rate: 1, Burst: 1_000_000_001}, {Name: "x", Burst: -1},
	} {
		require.Error(t, c.Validate(), "%+v", c)
		_, err := pace.New(c, nil)
		require.Error(t, err)
	}
	for _, c := range []pace.Config{{Name: "x"}, {Name: "x", Rate: 1}, {Name: "x", Rate: 100, Burst: 20}, {Name: "x", Burst: 1}} {
		require.NoError(t, c.Validate(), "%+v", c)
	}
	_, err := pace.New(pace.Config{Name: "x", Rate: 1}, nil)
	require.ErrorContains(t, err, "database")
}

func TestUnlimited(t *testing.T) {
	t.Parallel()
	p := newPacer(t, nil, pace.Config{Name: "x"})
	require.False(t, p.Limited())
	require.Equal(t, math.MaxInt, p.Most())
	require.NoError(t, p.Wait(t.Context(), 1_000_000_000))
	require.ErrorIs(t, p.Wait(t.Context(), -1), pace.ErrTooMany)
	p.Close()
	p.Close()
	require.NoError(t, p.Wait(t.Context(), 1))
}

func TestWaitEndsWithItsContext(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "mailer", func(t *testing.T, db *database.DB) {
		p := slow(t, db)
		require.NoError(t, p.Wait(t.Context(), 0), "nothing is always let pass")
		require.ErrorIs(t, p.Wait(t.Context(), p.Most()+1), pace.ErrTooMany)
		why := errors.New("the test says so")
		ended, cancel := context.WithCancelCause(t.Context())
		cancel(why)
		require.ErrorIs(t, p.Wait(ended, 1), why)

		require.NoError(t, p.Wait(t.Context(), 1)) // after a second
		ctx, cancel := context.WithCancelCause(t.Context())
		results := make(chan error, 2)
		for range 2 { // one that waits for its share, one for its turn
			go func() { results <- p.Wait(ctx, 1) }()
		}
		waiting(t, p, 2)
		cancel(why)
		require.ErrorIs(t, <-results, why)
		require.ErrorIs(t, <-results, why)

		soon, stop := context.WithTimeout(t.Context(), 5*time.Second)
		defer stop()
		start := time.Now()
		require.ErrorIs(t, p.Wait(soon, 1), pace.ErrLate)
		require.Less(t, time.Since(start), 4*time.Second, "known at once")
	})
}

func TestCloseEndsTheWaiting(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "mailer", func(t *testing.T, db *database.DB) {
		p := slow(t, db)
		require.NoError(t, p.Wait(t.Context(), 1))
		results := make(chan error, 3)
		for range 3 {
			go func() { results <- p.Wait(context.Background(), 1) }()
		}
		waiting(t, p, 3)
		p.Close()
		for range 3 {
			require.ErrorIs(t, <-results, pace.ErrClosed)
		}
		require.ErrorIs(t, p.Wait(t.Context(), 1), pace.ErrClosed)

		// What need not wait still passes: work that is at hand can be finished.
		quick := newPacer(t, db, pace.Config{Name: "quick", Rate: 100, Burst: 100})
		quick.Close()
		require.NoError(t, quick.Wait(t.Context(), 1))
	})
}

func TestDatabaseThatIsAway(t *testing.T) {
	t.Parallel()
	databasetest.EachURL(t, "mailer", func(t *testing.T, _ *database.DB, url string) {
		db, err := database.Open(url, database.Options{Schema: "mailer"})
		require.NoError(t, err)
		p := newPacer(t, db, pace.Config{Name: "x", Rate: 10})
		require.NoError(t, db.Close())
		err = p.Wait(t.Context(), 1)
		require.Equal(t, database.ClassUnavailable, database.Classify(err), "%v", err)
	})
}

// TestRowThatIsLocked: a held row delays and is then gone round, in bounded time.
func TestRowThatIsLocked(t *testing.T) {
	t.Parallel()
	db, _ := databasetest.Postgres(t, "mailer")
	p := newPacer(t, db, pace.Config{Name: "x", Rate: 10})
	require.NoError(t, p.Wait(t.Context(), 1))
	held, release := make(chan struct{}), make(chan struct{})
	done := make(chan error, 1)
	go func() {
		done <- db.Tx(context.Background(), func(ctx context.Context, tx *database.Tx) error {
			_, err := tx.ExecContext(ctx, `UPDATE pace SET booked = booked WHERE name = 'x'`)
			close(held)
			<-release
			return err
		})
	}()
	<-held
	result := make(chan error, 1)
	go func() { result <- p.Wait(context.Background(), p.Most()) }()
	waiting(t, p, 1)
	close(release)
	require.NoError(t, <-done)
	require.NoError(t, <-result)
}

// TestReplicasInRealTime: three replicas with several callers each, one of which dies on the way,
// keep to the budget, and each gets its share. The clock here is read after Wait has returned,
// on a machine that may be busy, so a second is allowed for.
func TestReplicasInRealTime(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "mailer", func(t *testing.T, db *database.DB) {
		const rate, burst, callers, enough = 100, 200, 3, 150
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		dying, kill := context.WithCancel(ctx)
		defer kill()
		var mu sync.Mutex
		var passed []pass
		counts := make([]int, 3)
		count := func(replica, n int) {
			mu.Lock()
			defer mu.Unlock()
			passed = append(passed, pass{time.Now(), n})
			if counts[replica] += n; counts[0] > enough/3 {
				kill()
			}
			if min(counts[1], counts[2]) > enough {
				cancel()
			}
		}
		var wg sync.WaitGroup
		for i := range counts {
			p, ctx := newPacer(t, db, pace.Config{Name: "x", Rate: rate, Burst: burst}), ctx
			if i == 0 {
				ctx = dying
			}
			for caller := range callers {
				wg.Go(func() {
					for ctx.Err() == nil {
						if p.Wait(ctx, 1+caller) == nil {
							count(i, 1+caller)
						}
					}
				})
			}
		}
		wg.Wait()
		for i := range passed {
			sum := 0
			for j := i; j < len(passed); j++ {
				sum += passed[j].n
				require.LessOrEqual(t, float64(sum), rate*(passed[j].at.Sub(passed[i].at).Seconds()+1)+burst)
			}
		}
		require.Greater(t, min(counts[1], counts[2]), enough, "nobody starves: %v", counts)
	})
}
