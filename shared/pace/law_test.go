package pace_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
	"github.com/pillarbox/pillarbox/shared/pace"
)

// world is a database with a clock that the test sets, and replicas whose clocks tell
// other times and may be any distance from it.
type world struct {
	db       *database.DB
	config   pace.Config
	now      time.Time // the true time, which is the database's
	replicas []*replica
	passed   []pass
}

type pass struct {
	at time.Time
	n  int
}

// replica is a process with one caller.
type replica struct {
	w        *world
	p        *pace.Pacer
	n        int // that its caller wants; 0: no caller
	wake     time.Time
	to, from time.Duration // how long a request and its answer travel
	answer   bool          // an answer is travelling
}

func newWorld(t require.TestingT, db *database.DB, c pace.Config) *world {
	return &world{db: db, config: c, now: time.Date(2026, 3, 14, 9, 0, 0, 0, time.UTC)}
}

func (w *world) start(t require.TestingT, skew time.Duration) *replica {
	p, err := pace.New(w.config, w.db)
	require.NoError(t, err)
	r := &replica{w: w, p: p}
	p.SetClocks(func() time.Time {
		if r.answer {
			w.now, r.answer = w.now.Add(r.from), false
		}
		return w.now.Add(skew)
	}, func() string {
		w.now, r.answer = w.now.Add(r.to), true
		return strconv.FormatInt(database.Micros(w.now), 10)
	})
	w.replicas = append(w.replicas, r)
	return r
}

// step lets the replica's caller make one step, and holds a pass against the law.
func (r *replica) step(t require.TestingT) {
	wait, err := r.p.Step(context.Background(), r.n)
	if errors.Is(err, pace.ErrSlow) { // its caller tries again
		wait, err = time.Second, nil
	}
	require.NoError(t, err)
	r.wake = r.w.now.Add(wait)
	if wait == 0 {
		r.w.pass(t, r.n)
		r.n = 0
	}
}

// pass checks every window that ends now.
func (w *world) pass(t require.TestingT, n int) {
	w.passed = append(w.passed, pass{w.now, n})
	rate, burst := w.config.Rate, float64(w.config.Burst)
	sum := 0
	for i := len(w.passed) - 1; i >= 0; i-- {
		sum += w.passed[i].n
		window := w.now.Sub(w.passed[i].at)
		require.LessOrEqual(t, float64(sum), rate*window.Seconds()+burst+1e-6,
			"%d events within %s at rate %g and burst %g", sum, window, rate, burst)
	}
}

// booked is how long the queue is.
func (w *world) booked(t require.TestingT) time.Duration {
	var end *int64
	require.NoError(t, w.db.Read().QueryRowContext(context.Background(),
		`SELECT MAX(booked) FROM pace WHERE name = $1`, w.config.Name).Scan(&end))
	if end == nil {
		return 0
	}
	return max(0, database.Time(*end).Sub(w.now))
}

// serve lets time pass until every caller has passed, and fails when that takes longer than
// the queue before them and their own events.
func (w *world) serve(t require.TestingT) {
	limit := w.booked(t) + time.Second
	for _, r := range w.replicas {
		r.to, r.from = time.Millisecond, time.Millisecond
		if r.n > 0 {
			limit += r.p.Cost(max(r.n, r.p.Chunk()))
		}
	}
	end := w.now.Add(limit)
	for {
		var next *replica
		for _, r := range w.replicas {
			if r.n > 0 && (next == nil || r.wake.Before(next.wake)) {
				next = r
			}
		}
		if next == nil {
			return
		}
		if next.wake.After(w.now) {
			w.now = next.wake
		}
		require.False(t, w.now.After(end), "a caller starves")
		next.step(t)
	}
}

func configs(t *rapid.T, name string) pace.Config {
	rate := rapid.OneOf(rapid.Float64Range(0.05, 5), rapid.Float64Range(5, 2000)).Draw(t, "rate")
	c := pace.Config{Name: name, Rate: rate}
	for c.Burst = 2; c.Validate() != nil; c.Burst++ {
	}
	c.Burst += rapid.OneOf(rapid.Just(0), rapid.IntRange(0, 10), rapid.IntRange(0, 3000)).Draw(t, "more burst")
	return c
}

// serverBudgets is how many of the random histories the slower engine goes through.
const serverBudgets = 10

// TestLaw: whatever replicas come, freeze and go, no window has more events than
// rate × t + burst, and every caller passes in its time.
func TestLaw(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "mailer", func(t *testing.T, db *database.DB) {
		budgets := 0
		rapid.Check(t, func(t *rapid.T) {
			budgets++
			if db.Dialect().Postgres() && budgets > serverBudgets && !t.Failed() {
				return
			}
			w := newWorld(t, db, configs(t, fmt.Sprint("budget ", budgets)))
			some := func(t *rapid.T, ok func(*replica) bool) *replica {
				var all []*replica
				for _, r := range w.replicas {
					if ok(r) {
						all = append(all, r)
					}
				}
				if len(all) == 0 {
					t.Skip("no such replica")
				}
				return rapid.SampledFrom(all).Draw(t, "replica")
			}
			delay := func(t *rapid.T, what string) time.Duration {
				return rapid.SampledFrom([]time.Duration{0, time.Millisecond, 40 * time.Millisecond, 400 * time.Millisecond}).Draw(t, what)
			}
			run := func(t *rapid.T) {
				r := some(t, func(r *replica) bool { return r.n > 0 && !r.wake.After(w.now) })
				r.to, r.from = delay(t, "to"), delay(t, "from")
				r.step(t)
			}
			t.Repeat(map[string]func(*rapid.T){
				"start": func(t *rapid.T) {
					if len(w.replicas) == 4 {
						t.Skip("enough")
					}
					w.start(t, time.Duration(rapid.Int64Range(-1e13, 1e13).Draw(t, "skew")))
				},
				"kill": func(t *rapid.T) {
					dead := some(t, func(*replica) bool { return true })
					for i, r := range w.replicas {
						if r == dead {
							w.replicas = append(w.replicas[:i:i], w.replicas[i+1:]...)
							return
						}
					}
				},
				"ask": func(t *rapid.T) {
					r := some(t, func(r *replica) bool { return r.n == 0 })
					r.n = rapid.OneOf(rapid.Just(1), rapid.IntRange(1, r.p.Most())).Draw(t, "n")
					r.wake = w.now
				},
				"run": run, "run too": run, "run as well": run,
				"time passes": func(t *rapid.T) {
					w.now = w.now.Add(time.Duration(rapid.OneOf(
						rapid.Int64Range(0, 1e8), rapid.Int64Range(0, 1e9), rapid.Int64Range(0, 2e10)).Draw(t, "time")))
				},
				"next wakes": func(t *rapid.T) {
					r := some(t, func(r *replica) bool { return r.n > 0 && r.wake.After(w.now) })
					w.now = r.wake
				},
				"all are served": func(t *rapid.T) { w.serve(t) },
			})
			w.serve(t)
		})
	})
}

// TestArithmetic: what the law is made of adds up for every configuration.
func TestArithmetic(t *testing.T) {
	t.Parallel()
	db, _ := databasetest.SQLite(t, "mailer")
	rapid.Check(t, func(t *rapid.T) {
		c := pace.Config{Name: "x", Rate: rapid.OneOf(
			rapid.Float64Range(0.001, 1), rapid.Float64Range(1, 100), rapid.Float64Range(100, 1e6)).Draw(t, "rate")}
		c.Burst = rapid.IntRange(1, 1_000_000_000).Draw(t, "burst")
		if c.Validate() != nil {
			c.Burst = 0
		}
		p, err := pace.New(c, db)
		require.NoError(t, err)
		if c.Burst > 0 {
			require.LessOrEqual(t, (p.Tolerance()+p.Validity()).Seconds()*c.Rate, float64(c.Burst)*(1+1e-12))
			require.GreaterOrEqual(t, p.Most(), c.Burst/2-1)
		}
		require.GreaterOrEqual(t, p.Validity(), 99*time.Millisecond)
		require.LessOrEqual(t, p.Validity(), 2*time.Second)
		require.GreaterOrEqual(t, p.Most(), 1)
		require.LessOrEqual(t, p.Cost(p.Most()), p.Tolerance())
		if p.Chunk() > 1 {
			require.LessOrEqual(t, p.Cost(p.Chunk()), p.Validity()/4+2*time.Microsecond)
		}
	})
}

// TestSharesOfTheKilledComeBack: what a killed replica held is missing for no longer
// than the budget takes to grow by as much, and then all of it is there.
func TestSharesOfTheKilledComeBack(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "mailer", func(t *testing.T, db *database.DB) {
		w := newWorld(t, db, pace.Config{Name: "x", Rate: 100, Burst: 100})
		killed := w.start(t, 0)
		for killed.p.Held() < killed.p.Chunk()-1 { // leases grow while they are spent
			killed.n = 1
			w.serve(t)
		}
		held := killed.p.Held()
		require.Equal(t, 11, held)
		w.replicas = nil

		other := w.start(t, time.Hour)
		other.n = other.p.Most()
		require.Equal(t, 50, other.n)
		queue := w.booked(t)
		w.now = w.now.Add(queue) // by now all that was ever leased has been earned again, spent or not
		require.Greater(t, queue, other.p.Cost(held))
		other.step(t)
		require.Zero(t, other.n, "all at once, and at once")

		// Compared with a budget that nobody held anything of, the rest costs nothing.
		start := w.now
		for range 10 {
			other.n = 10
			w.serve(t)
		}
		require.InDelta(t, other.p.Cost(100).Seconds(), w.now.Sub(start).Seconds(), 0.1)
	})
}

// TestKilledWithBookingsAhead: a replica that dies while it waits holds up others only by
// what it had booked.
func TestKilledWithBookingsAhead(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "mailer", func(t *testing.T, db *database.DB) {
		w := newWorld(t, db, pace.Config{Name: "x", Rate: 1, Burst: 20})
		for range 3 {
			r := w.start(t, 0)
			r.n = r.p.Most()
			r.step(t)
		}
		require.Len(t, w.passed, 1)
		w.replicas = nil
		other := w.start(t, 0)
		other.n = 1
		begun := w.now
		w.serve(t) // which limits the time to what was booked
		require.Greater(t, w.now.Sub(begun), 30*time.Second)
		require.Less(t, w.now.Sub(begun), time.Minute)
	})
}

func TestClockThatIsSetBack(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "mailer", func(t *testing.T, db *database.DB) {
		w := newWorld(t, db, pace.Config{Name: "x", Rate: 1, Burst: 2})
		r := w.start(t, 0)
		r.n = 1
		w.serve(t)
		w.now = w.now.Add(-24 * time.Hour)
		w.passed = nil
		r.n = 1
		for try := 0; r.n > 0; try++ {
			require.Less(t, try, 5, "it must not wait for a day")
			r.step(t)
			require.Less(t, r.wake.Sub(w.now), 2*time.Second)
			w.now = r.wake
		}
	})
}

// TestDatabaseThatIsTooSlow: answers that come after the shares are void let nothing pass, and
// that is told.
func TestDatabaseThatIsTooSlow(t *testing.T) {
	t.Parallel()
	db, _ := databasetest.SQLite(t, "mailer")
	w := newWorld(t, db, pace.Config{Name: "x", Rate: 10, Burst: 10})
	r := w.start(t, 0)
	r.n, r.to, r.from = 1, 0, time.Second
	_, err := r.p.Step(t.Context(), 1)
	require.ErrorIs(t, err, pace.ErrSlow)
	r.wake = w.now
	w.serve(t)
	require.Len(t, w.passed, 1)
}

// TestWorstMoments spends shares at the first and at the last moment that the travelling times allow:
// here the law is met exactly, so that a share good for a little longer or earlier would break it.
func TestWorstMoments(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	databasetest.Each(t, "mailer", func(t *testing.T, db *database.DB) {
		lease := func(r *replica, n int) {
			require.NoError(t, r.p.Lease(t.Context(), n))
			r.n = n
		}
		// A share is void by the time of its request, however long the answer travelled.
		w := newWorld(t, db, pace.Config{Name: "void", Rate: 100, Burst: 100})
		a, b, c := w.start(t, 0), w.start(t, 0), w.start(t, 0)
		a.from = 400 * ms
		lease(a, 50)
		lease(b, 40)
		w.now, a.from = w.now.Add(499*ms), 0
		c.n = 49
		for _, r := range []*replica{b, c, a} {
			r.step(t)
		}
		require.Len(t, w.passed, 2)
		require.NotZero(t, a.n)

		// It is good from the time of its answer, however long the request travelled.
		w = newWorld(t, db, pace.Config{Name: "early", Rate: 100, Burst: 100})
		a, b, c = w.start(t, 0), w.start(t, 0), w.start(t, 0)
		lease(a, 50)
		w.now = w.now.Add(499 * ms)
		a.step(t)
		c.n = 49
		c.step(t)
		b.n, b.to = 50, 300*ms
		b.step(t)
		require.Len(t, w.passed, 2)
		w.serve(t)
		require.Len(t, w.passed, 3)
		require.Less(t, w.now.Sub(w.passed[0].at), 510*ms, "and not later than needed")
	})
}

// TestLeasesFollowTheWork: they grow while they are spent, and shrink to what is asked for while
// they are not.
func TestLeasesFollowTheWork(t *testing.T) {
	t.Parallel()
	db, _ := databasetest.SQLite(t, "mailer")
	w := newWorld(t, db, pace.Config{Name: "x", Rate: 100, Burst: 100})
	r := w.start(t, 0)
	most := 0
	for range 60 {
		r.n = 1
		w.serve(t)
		most = max(most, r.p.Held())
	}
	require.Equal(t, r.p.Chunk()-1, most)
	for range 6 {
		w.now = w.now.Add(10 * time.Second)
		r.n = 1
		w.serve(t)
	}
	require.Zero(t, r.p.Held(), "a replica with little to do keeps nothing from others")
}
