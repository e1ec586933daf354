package coalesce_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/pillarbox/pillarbox/shared/coalesce"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newGroup(t require.TestingT, c coalesce.Config) *coalesce.Group[string, int] {
	g, err := coalesce.New[string, int](c)
	require.NoError(t, err)
	return g
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	for _, c := range []coalesce.Config{{Wait: -1}, {Keys: -1}} {
		_, err := coalesce.New[string, int](c)
		require.Error(t, err)
	}
}

// A storm of repeats in real time: one work at a time for each key, everybody gets
// an answer, and a result is always that of a work for its own key.
func TestStorm(t *testing.T) {
	t.Parallel()
	const keys, clients, rounds = 4, 64, 50
	g := newGroup(t, coalesce.Config{Wait: time.Second})
	var running [keys]atomic.Int32
	var answers atomic.Uint64
	var wg sync.WaitGroup
	for client := range clients {
		wg.Go(func() {
			for round := range rounds {
				key := (client + round) % keys
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(round%5)*time.Millisecond)
				v, _, err := g.Do(ctx, fmt.Sprint(key), "", func(context.Context) (int, error) {
					if running[key].Add(1) != 1 {
						t.Error("two works for one key at once")
					}
					runtime.Gosched()
					running[key].Add(-1)
					if round%7 == 0 {
						return 0, errors.New("dead")
					}
					return key + 1, nil
				})
				cancel()
				if err == nil && v != key+1 {
					t.Error("result of another key")
				}
				answers.Add(1)
			}
		})
	}
	wg.Wait()
	s := g.Stats()
	require.EqualValues(t, clients*rounds, answers.Load())
	require.EqualValues(t, clients*rounds, s.Processed+s.TookOver+s.Shared+s.Declined+s.GaveUp)
	require.Equal(t, s.Processed, s.Keys[coalesce.None]+s.Keys[coalesce.Sparse]+s.Keys[coalesce.High])
	require.Zero(t, s.Active, "nothing is remembered")
}

func TestWaiterThatGaveUpHandsTheTurnOn(t *testing.T) {
	t.Parallel()
	// The head dies and the waiter's context ends at the same moment, in any order:
	// whoever comes next must never find a key that nobody works at.
	for range 2000 {
		g := newGroup(t, coalesce.Config{})
		entered, die := make(chan struct{}), make(chan struct{})
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		wg.Go(func() {
			_, _, _ = g.Do(context.Background(), "k", "", func(context.Context) (int, error) {
				close(entered)
				<-die
				return 0, errors.New("dead")
			})
		})
		<-entered
		wg.Go(func() {
			_, _, _ = g.Do(ctx, "k", "", func(context.Context) (int, error) { return 1, nil })
		})
		wg.Go(cancel)
		wg.Go(func() { close(die) })
		wg.Wait()
		require.Equal(t, coalesce.Init, g.State("k"))
	}
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGroup(t, coalesce.Config{Name: "idempotency", Keys: 1})
		reg := prometheus.NewPedanticRegistry()
		require.NoError(t, reg.Register(g))
		release := make(chan struct{})
		work := func(context.Context) (int, error) { <-release; return 1, nil }
		for range 3 {
			go func() { _, _, _ = g.Do(context.Background(), "k", "", work) }()
			synctest.Wait()
		}
		_, _, err := g.Do(context.Background(), "k", "other", work)
		require.ErrorIs(t, err, coalesce.ErrDiffers)
		_, _, err = g.Do(context.Background(), "another", "", work)
		require.ErrorIs(t, err, coalesce.ErrFull)
		close(release)
		synctest.Wait()
		families, err := reg.Gather()
		require.NoError(t, err)
		got := map[string]float64{}
		for _, family := range families {
			for _, metric := range family.GetMetric() {
				name := family.GetName()
				for _, label := range metric.GetLabel() {
					name += " " + label.GetValue()
				}
				got[name] = metric.GetCounter().GetValue() + metric.GetGauge().GetValue()
			}
		}
		require.Equal(t, map[string]float64{
			"coalesce_active_keys idempotency":     0,
			"coalesce_keys_total idempotency none": 0, "coalesce_keys_total idempotency sparse": 0,
			"coalesce_keys_total idempotency high":          1,
			"coalesce_requests_total idempotency processed": 1,
			"coalesce_requests_total idempotency took_over": 0,
			"coalesce_requests_total idempotency shared":    1,
			"coalesce_requests_total idempotency declined":  1,
			"coalesce_requests_total idempotency gave_up":   0,
			"coalesce_requests_total idempotency differed":  1,
			"coalesce_requests_total idempotency full":      1,
		}, got)
	})
}

func ExampleGroup() {
	g, err := coalesce.New[string, string](coalesce.Config{Wait: time.Second})
	if err != nil {
		panic(err)
	}
	begun, release := make(chan struct{}), make(chan struct{})
	place := func(context.Context) (string, error) {
		close(begun)
		<-release
		return "order 1", nil
	}
	var clients sync.WaitGroup
	client := func(name string) {
		order, shared, err := g.Do(context.Background(), "key", "body", place)
		fmt.Println(name, order, shared, err)
	}
	clients.Go(func() { client("first:") })
	<-begun
	second := make(chan struct{})
	clients.Go(func() { defer close(second); client("second:") })
	for g.State("key") != coalesce.Block {
		runtime.Gosched()
	}
	client("third:")
	fmt.Println(g.State("key"))
	close(release)
	clients.Wait()
	fmt.Println(g.State("key"))
	// Unordered output:
	// third:  false declined: a request with this key is under way and another waits
	// decline
	// first: order 1 false <nil>
	// second: order 1 true <nil>
	// init
}

func BenchmarkDo(b *testing.B) {
	work := func(context.Context) (int, error) { return 1, nil }
	b.Run("direct", func(b *testing.B) {
		ctx := context.Background()
		for b.Loop() {
			_, _ = work(ctx)
		}
	})
	b.Run("one", func(b *testing.B) {
		g, ctx := newGroup(b, coalesce.Config{}), context.Background()
		b.ReportAllocs()
		for b.Loop() {
			_, _, _ = g.Do(ctx, "key", "", work)
		}
	})
	b.Run("parallel, own keys", func(b *testing.B) {
		g, ctx := newGroup(b, coalesce.Config{}), context.Background()
		var next atomic.Int64
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			key := fmt.Sprint(next.Add(1))
			for pb.Next() {
				_, _, _ = g.Do(ctx, key, "", work)
			}
		})
	})
	b.Run("parallel, one key", func(b *testing.B) {
		g, ctx := newGroup(b, coalesce.Config{}), context.Background()
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				_, _, _ = g.Do(ctx, "key", "", work)
			}
		})
	})
}
