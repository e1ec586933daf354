package dispatch_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pillarbox/pillarbox/shared/dispatch"
)

// TestNothingIsLostOrHandledTwice is the law of every strategy to one worker:
// a message is handled once, or it is not handled and has an error that says why.
func TestNothingIsLostOrHandledTwice(t *testing.T) {
	t.Parallel()
	for _, mode := range dispatch.Modes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(t *rapid.T) {
				workers := rapid.IntRange(1, 5).Draw(t, "workers")
				bad := rapid.SliceOfDistinct(rapid.IntRange(0, 60), rapid.ID).Draw(t, "bad")
				isBad := map[int]bool{}
				for _, n := range bad {
					isBad[n] = true
				}
				w := newWitness()
				w.fails = func(_ string, m message) bool { return isBad[m.n] }
				s := strategy(t, mode, workers, w)
				messages := drawMessages(t)
				errs := spread(t, s, messages)
				counts := w.counts()
				for i, m := range messages {
					switch err := errorAt(errs, i); {
					case err == nil:
						require.Equal(t, 1, counts[m], "handled once")
						require.False(t, isBad[m.n], "a failure is reported")
					case errors.Is(err, errBoom):
						require.Equal(t, 1, counts[m], "handled once")
						require.ErrorContains(t, err, fmt.Sprintf("of %d:", m.n), "its own error")
					default:
						require.Zero(t, counts[m], "not handled: %v", err)
					}
				}
				if mode == dispatch.ModeSingle {
					workers = 1
				}
				require.LessOrEqual(t, w.most["all"], workers)
			})
		})
	}
}

func strategy(t *rapid.T, mode dispatch.Mode, workers int, w *witness) dispatch.Strategy[message] {
	s, err := dispatch.New(dispatch.Spread[message]{
		Mode: mode, Workers: workers, Key: keyOf,
		RoundRobin: dispatch.RoundRobinConfig{Fault: func(error) bool { return false }},
	}, w.handler("any"))
	require.NoError(t, err)
	return s
}

// spread gives a strategy its messages in one batch, in several, or one by one, at once.
func spread(t *rapid.T, s dispatch.Strategy[message], messages []message) []error {
	if rapid.Bool().Draw(t, "whole") || len(messages) == 0 {
		return s.HandleBatch(context.Background(), messages)
	}
	cut := rapid.IntRange(0, len(messages)).Draw(t, "cut")
	errs := make([]error, len(messages))
	var running sync.WaitGroup
	running.Go(func() { copy(errs[:cut], s.HandleBatch(context.Background(), messages[:cut])) })
	for i := cut; i < len(messages); i++ {
		running.Go(func() { errs[i] = s.Handle(context.Background(), messages[i]) })
	}
	running.Wait()
	return errs
}

// TestSingleKeepsOrder is the order law of Single: one at a time, in order, and
// nothing behind a failure.
func TestSingleKeepsOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := newWitness()
		bad := rapid.IntRange(-1, 60).Draw(t, "bad")
		w.fails = func(_ string, m message) bool { return m.n == bad }
		messages := drawMessages(t)
		errs := dispatch.NewSingle(w.handler("one")).HandleBatch(context.Background(), messages)
		require.LessOrEqual(t, w.most["all"], 1)
		want := len(messages)
		if bad >= 0 && bad < len(messages) {
			want = bad + 1
		}
		require.Len(t, w.seen, want)
		for i, s := range w.seen {
			require.Equal(t, i, s.n)
		}
		for i := want; i < len(messages); i++ {
			require.ErrorIs(t, errs[i], dispatch.ErrPredecessor)
		}
	})
}

// TestCompetingLosesNothingWhileItIsResized is the law of a changeable N.
func TestCompetingLosesNothingWhileItIsResized(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := newWitness()
		sizes := rapid.SliceOfN(rapid.IntRange(1, 6), 1, 20).Draw(t, "sizes")
		most := 0
		for _, n := range sizes {
			most = max(most, n)
		}
		s, err := dispatch.NewCompeting(sizes[0], func(i int) dispatch.Handler[message] { return w.handler(fmt.Sprint(i)) })
		require.NoError(t, err)
		var resizing sync.WaitGroup
		resizing.Go(func() {
			for _, n := range sizes {
				if err := s.Resize(n); err != nil {
					t.Error(err)
				}
			}
		})
		messages := drawMessages(t)
		require.NoError(t, errors.Join(spread(t, s, messages)...))
		resizing.Wait()
		require.Equal(t, sizes[len(sizes)-1], s.Workers())
		require.Len(t, w.counts(), len(messages), "nothing lost")
		require.Len(t, w.seen, len(messages), "nothing twice")
		require.LessOrEqual(t, w.most["all"], most, "never more than the largest N")
		for i := range 6 {
			require.LessOrEqual(t, w.most[fmt.Sprint("worker ", i)], 1, "one message per worker")
		}
		w.most["all"] = 0
		require.Nil(t, s.HandleBatch(context.Background(), messages))
		require.LessOrEqual(t, w.most["all"], s.Workers(), "the last size holds for what comes now")
	})
}

func TestCompetingBeginsInOrder(t *testing.T) {
	t.Parallel()
	w := newWitness()
	s, err := dispatch.NewCompeting(1, dispatch.Alike(w.handler("a")))
	require.NoError(t, err)
	require.Nil(t, s.HandleBatch(t.Context(), []message{{0, "a"}, {1, "a"}, {2, "a"}}))
	for i, seen := range w.seen {
		require.Equal(t, i, seen.n)
	}
	for _, n := range []int{0, -1, dispatch.MostWorkers + 1} {
		require.Error(t, s.Resize(n))
	}
	require.Equal(t, 1, s.Workers())
}

// TestEndedContextHandlesNothing: what did not begin says why.
func TestEndedContextHandlesNothing(t *testing.T) {
	t.Parallel()
	stop := errors.New("stopped")
	for _, mode := range dispatch.Modes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			w := newWitness()
			s, err := dispatch.New(dispatch.Spread[message]{Mode: mode, Workers: 2, Key: keyOf}, w.handler("any"))
			require.NoError(t, err)
			ctx, cancel := context.WithCancelCause(t.Context())
			cancel(stop)
			require.ErrorIs(t, s.Handle(ctx, message{}), stop)
			for _, err := range s.HandleBatch(ctx, make([]message, 3)) {
				require.Error(t, err)
			}
			require.Empty(t, w.seen)
			require.NoError(t, s.Handle(t.Context(), message{}), "and nothing is left behind")
			require.Nil(t, s.HandleBatch(t.Context(), nil))
		})
	}
}

// TestPanicIsTheErrorOfItsMessage: the others go on, and the worker is free again.
func TestPanicIsTheErrorOfItsMessage(t *testing.T) {
	t.Parallel()
	for _, mode := range dispatch.Modes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			s, err := dispatch.New(dispatch.Spread[message]{
				Mode: mode, Workers: 1, Key: keyOf,
				RoundRobin: dispatch.RoundRobinConfig{Fault: func(error) bool { return false }},
			}, func(_ context.Context, m message) error {
				if m.key == "bad" {
					panic("no such thing")
				}
				return nil
			})
			require.NoError(t, err)
			errs := s.HandleBatch(t.Context(), []message{{0, "good"}, {1, "bad"}})
			require.NoError(t, errs[0])
			var panicked *dispatch.PanicError
			require.ErrorAs(t, errs[1], &panicked)
			require.Equal(t, "no such thing", panicked.Value)
			require.Contains(t, string(panicked.Stack), "spread_test.go")
			require.ErrorAs(t, s.Handle(t.Context(), message{2, "bad"}), &panicked)
			require.NoError(t, s.Handle(t.Context(), message{3, "good"}))
		})
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	handle := func(context.Context, message) error { return nil }
	for _, s := range []dispatch.Spread[message]{
		{Mode: "lottery", Workers: 1},
		{Mode: dispatch.ModeByKey, Workers: 1},
		{Mode: dispatch.ModeCompeting},
		{Mode: dispatch.ModeRoundRobin, Workers: dispatch.MostWorkers + 1},
	} {
		_, err := dispatch.New(s, handle)
		require.Error(t, err, s.Mode)
	}
	var mode dispatch.Mode
	require.NoError(t, mode.UnmarshalText([]byte("by-key")))
	require.Equal(t, dispatch.ModeByKey, mode)
	require.ErrorContains(t, mode.UnmarshalText([]byte("bykey")), "competing, single, round-robin, by-key")
}
