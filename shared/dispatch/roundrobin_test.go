package dispatch_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pillarbox/pillarbox/shared/dispatch"
)

// TestRoundRobinIsFair is its law: of k messages to n workers that are well each
// gets k/n, rounded one way or the other, whoever joins or leaves in between.
func TestRoundRobinIsFair(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r := dispatch.NewRoundRobin[message](dispatch.RoundRobinConfig{})
		members, next := 0, 0
		var names []string
		join := func() {
			name := fmt.Sprint("w", members)
			members++
			names = append(names, name)
		}
		w := newWitness()
		for range rapid.IntRange(1, 5).Draw(t, "workers") {
			join()
			require.NoError(t, r.Join(names[len(names)-1], w.handler(names[len(names)-1])))
		}
		for range rapid.IntRange(1, 6).Draw(t, "rounds") {
			switch rapid.SampledFrom([]string{"stay", "join", "leave"}).Draw(t, "change") {
			case "join":
				join()
				require.NoError(t, r.Join(names[len(names)-1], w.handler(names[len(names)-1])))
			case "leave":
				if len(names) > 1 {
					i := rapid.IntRange(0, len(names)-1).Draw(t, "who")
					require.NoError(t, r.Leave(context.Background(), names[i]))
					names = append(names[:i:i], names[i+1:]...)
				}
			}
			before := w.by()
			messages := make([]message, rapid.IntRange(0, 20).Draw(t, "messages"))
			for i := range messages {
				messages[i] = message{next, "k"}
				next++
			}
			require.NoError(t, errors.Join(spread(t, r, messages)...))
			after := w.by()
			handled := 0
			for _, name := range names {
				got := after[name] - before[name]
				handled += got
				require.GreaterOrEqual(t, got, len(messages)/len(names))
				require.LessOrEqual(t, got, (len(messages)+len(names)-1)/len(names))
			}
			require.Equal(t, len(messages), handled, "who left gets nothing")
		}
		require.Len(t, w.counts(), next, "nothing twice, nothing lost")
	})
}

// TestRoundRobinSkipsTheUnavailable draws who fails when, and checks each turn
// against a model of two lines: the next in turn that is not cooling down.
func TestRoundRobinSkipsTheUnavailable(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(1, 4).Draw(rt, "workers")
		type step struct {
			fails bool
			wait  time.Duration
		}
		steps := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) step {
			return step{rapid.Bool().Draw(rt, "fails"), time.Duration(rapid.IntRange(0, 6).Draw(rt, "wait")) * time.Second}
		}), 1, 30).Draw(rt, "steps")
		synctest.Test(t, func(t *testing.T) {
			r := dispatch.NewRoundRobin[bool](dispatch.RoundRobinConfig{CoolDown: 5 * time.Second})
			var got []int
			for i := range n {
				require.NoError(t, r.Join(fmt.Sprint(i), func(_ context.Context, fails bool) error {
					got = append(got, i)
					if fails {
						return errBoom
					}
					return nil
				}))
			}
			until := make([]time.Time, n)
			turn := 0
			for _, s := range steps {
				want := -1
				for k := range n {
					if i := (turn + k) % n; !time.Now().Before(until[i]) {
						want, turn = i, i+1
						break
					}
				}
				got = nil
				err := r.Handle(t.Context(), s.fails)
				switch {
				case want < 0:
					require.ErrorIs(t, err, dispatch.ErrNoWorker)
					require.Empty(t, got)
				case s.fails:
					require.ErrorIs(t, err, errBoom)
					until[want] = time.Now().Add(5 * time.Second)
					require.Equal(t, []int{want}, got)
				default:
					require.NoError(t, err)
					require.Equal(t, []int{want}, got)
				}
				<-time.After(s.wait)
			}
		})
	})
}

// TestRoundRobinDoesNotWaitForAnOverdueWorker: it neither holds those who wait
// for it nor gets more before it has returned and cooled down.
func TestRoundRobinDoesNotWaitForAnOverdueWorker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := dispatch.NewRoundRobin[int](dispatch.RoundRobinConfig{CoolDown: 5 * time.Second, Timeout: time.Second})
		free := make(chan struct{})
		calls := map[string]int{}
		var mu sync.Mutex
		handler := func(name string, deaf bool) dispatch.Handler[int] {
			return func(context.Context, int) error {
				mu.Lock()
				calls[name]++
				first := calls[name] == 1
				mu.Unlock()
				if deaf && first {
					<-free // does not listen to its context
				}
				return nil
			}
		}
		require.NoError(t, r.Join("deaf", handler("deaf", true)))
		require.NoError(t, r.Join("well", handler("well", false)))
		start := time.Now()
		stuck := make(chan error)
		go func() { stuck <- r.Handle(t.Context(), 1) }()
		synctest.Wait()
		require.Nil(t, r.HandleBatch(t.Context(), []int{2, 3, 4, 5}))
		require.Equal(t, time.Second, time.Since(start), "those behind it went elsewhere at its deadline")
		require.Equal(t, map[string]int{"deaf": 1, "well": 4}, calls)
		require.Equal(t, []dispatch.Worker{{Name: "deaf", Pending: 1}, {Name: "well", Available: true}}, r.Workers())

		<-time.After(time.Minute)
		require.NoError(t, r.Handle(t.Context(), 6))
		require.Equal(t, 1, calls["deaf"], "however long it takes")
		close(free)
		require.NoError(t, <-stuck, "late, but handled")
		require.Nil(t, r.HandleBatch(t.Context(), []int{7, 8}))
		require.Equal(t, 1, calls["deaf"], "it cools down")
		<-time.After(5 * time.Second)
		require.Nil(t, r.HandleBatch(t.Context(), []int{9, 10}))
		require.Equal(t, 2, calls["deaf"], "and is tried again")
	})
}

// TestRoundRobinBlamesTheWorkerOnlyForItsFaults: neither a bad message nor the
// caller's own end takes a worker out of the turn.
func TestRoundRobinBlamesTheWorkerOnlyForItsFaults(t *testing.T) {
	t.Parallel()
	r := dispatch.NewRoundRobin[string](dispatch.RoundRobinConfig{
		Fault: func(err error) bool { return !errors.Is(err, errBoom) },
	})
	require.NoError(t, r.Join("a", func(ctx context.Context, m string) error {
		if m == "bad" {
			return errBoom
		}
		return context.Cause(ctx)
	}))
	require.ErrorIs(t, r.Handle(t.Context(), "bad"), errBoom)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, r.Handle(ctx, "good"), context.Canceled)
	require.NoError(t, r.Handle(t.Context(), "good"))
}

// TestRosterTakesEachNameOnce holds for both strategies with names.
func TestRosterTakesEachNameOnce(t *testing.T) {
	t.Parallel()
	type roster interface {
		dispatch.Strategy[message]
		Join(string, dispatch.Handler[message]) error
		Leave(context.Context, string) error
		Workers() []dispatch.Worker
	}
	for name, r := range map[string]roster{
		"round robin": dispatch.NewRoundRobin[message](dispatch.RoundRobinConfig{}),
		"by key":      dispatch.NewByKey(keyOf),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				hold, release := make(chan struct{}), make(chan struct{})
				handle := func(context.Context, message) error {
					hold <- struct{}{}
					<-release
					return nil
				}
				require.ErrorIs(t, r.Handle(t.Context(), message{}), dispatch.ErrNoWorker)
				require.ErrorIs(t, r.HandleBatch(t.Context(), make([]message, 1))[0], dispatch.ErrNoWorker)
				require.ErrorIs(t, r.Leave(t.Context(), "a"), dispatch.ErrNoWorker)
				require.NoError(t, r.Join("a", handle))
				require.ErrorIs(t, r.Join("a", handle), dispatch.ErrJoined)
				var running sync.WaitGroup
				running.Go(func() { require.NoError(t, r.Handle(t.Context(), message{})) })
				<-hold
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				require.ErrorIs(t, r.Leave(ctx, "a"), context.DeadlineExceeded, "it has a message")
				require.Empty(t, r.Workers())
				require.ErrorIs(t, r.Join("a", handle), dispatch.ErrJoined, "not while it has a message")
				close(release)
				running.Wait()
				require.NoError(t, r.Join("a", handle))
				require.NoError(t, r.Leave(t.Context(), "a"))
			})
		})
	}
}

// TestLeaveWaitsForTheLastMessage: who waits for the worker goes elsewhere.
func TestLeaveWaitsForTheLastMessage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := dispatch.NewRoundRobin[int](dispatch.RoundRobinConfig{})
		w := newWitness()
		slow := func(context.Context, int) error { <-time.After(3 * time.Second); return nil }
		quick := func(ctx context.Context, n int) error { return w.handler("quick")(ctx, message{n, ""}) }
		require.NoError(t, r.Join("slow", slow))
		require.NoError(t, r.Join("quick", quick))
		start := time.Now()
		var running sync.WaitGroup
		running.Go(func() { require.Nil(t, r.HandleBatch(t.Context(), []int{1, 2, 3, 4, 5})) })
		synctest.Wait()
		require.NoError(t, r.Leave(t.Context(), "slow"))
		require.Equal(t, 3*time.Second, time.Since(start))
		running.Wait()
		require.Len(t, w.seen, 4)
	})
}

// TestWhatStandsBehindAFailureGoesElsewhere, also when the worker is free again before it is asked.
func TestWhatStandsBehindAFailureGoesElsewhere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := dispatch.NewRoundRobin[int](dispatch.RoundRobinConfig{Timeout: time.Second})
		require.NoError(t, r.Join("only", func(ctx context.Context, n int) error {
			if n == 1 {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}))
		errs := r.HandleBatch(t.Context(), []int{1, 2})
		require.ErrorIs(t, errs[0], context.DeadlineExceeded)
		require.ErrorIs(t, errs[1], dispatch.ErrNoWorker)
		<-time.After(5 * time.Second)
		require.Nil(t, r.HandleBatch(t.Context(), []int{3, 4}))
	})
}

// TestTheTurnStaysWithWhomItWas when another one leaves or joins.
func TestTheTurnStaysWithWhomItWas(t *testing.T) {
	t.Parallel()
	r := dispatch.NewRoundRobin[string](dispatch.RoundRobinConfig{})
	var got string
	join := func(name string) {
		require.NoError(t, r.Join(name, func(context.Context, string) error { got += name; return nil }))
	}
	turns := func(n int) {
		require.Nil(t, r.HandleBatch(t.Context(), make([]string, n)[:1]))
		for range n - 1 {
			require.NoError(t, r.Handle(t.Context(), ""))
		}
		got += " "
	}
	join("a")
	join("b")
	join("c")
	turns(2) // it is c's turn
	require.NoError(t, r.Leave(t.Context(), "a"))
	turns(3)
	join("d") // it is b's turn
	turns(4)
	require.NoError(t, r.Leave(t.Context(), "d"))
	turns(2)
	require.Equal(t, "ab cbc bcdb cb ", got)
}
