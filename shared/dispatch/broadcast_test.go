package dispatch_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pillarbox/pillarbox/shared/dispatch"
)

// flaky are handlers of which each fails a number of times before it succeeds.
type flaky struct {
	mu    sync.Mutex // guards the rest
	left  []int      // failures to come
	calls []int      // handlers in the order of their calls, since the last look
}

func (f *flaky) handlers() []dispatch.Handler[string] {
	all := make([]dispatch.Handler[string], len(f.left))
	for i := range all {
		all[i] = func(context.Context, string) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.calls = append(f.calls, i)
			if f.left[i] > 0 {
				f.left[i]--
				return errBoom
			}
			return nil
		}
	}
	return all
}

func (f *flaky) look() []int {
	f.mu.Lock()
	defer f.mu.Unlock()
	calls := f.calls
	f.calls = nil
	return calls
}

var drawFailures = rapid.SliceOfN(rapid.IntRange(0, 3), 0, 6)

// TestSequentialResumesWhereItFailed is its law: in order, nothing behind a
// failure, and within a delivery each handler succeeds once.
func TestSequentialResumesWhereItFailed(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		f := &flaky{left: drawFailures.Draw(t, "failures")}
		n := len(f.left)
		handle := dispatch.Sequential(f.handlers()...)
		ctx := dispatch.WithDelivery(context.Background())
		next := 0
		for {
			toCome := slices.Clone(f.left)
			err := handle(ctx, "m")
			var want []int // from the one that failed to the next that fails
			for next < n {
				want = append(want, next)
				if toCome[next] > 0 {
					break
				}
				next++
			}
			require.Equal(t, want, f.look())
			if err == nil {
				require.Equal(t, n, next)
				break
			}
			var step *dispatch.StepError
			require.ErrorAs(t, err, &step)
			require.Equal(t, next+1, step.Step)
			require.ErrorIs(t, err, errBoom)
		}
		require.NoError(t, handle(ctx, "m"), "a finished broadcast begins anew")
		require.Len(t, f.look(), n)
	})
}

// TestParallelRunsAgainOnlyWhatFailed is its law: every error is reported, and
// within a delivery each handler succeeds once.
func TestParallelRunsAgainOnlyWhatFailed(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		f := &flaky{left: drawFailures.Draw(t, "failures")}
		handle := dispatch.Parallel(f.handlers()...)
		ctx := dispatch.WithDelivery(context.Background())
		var open []int
		for i := range f.left {
			open = append(open, i)
		}
		for {
			var failing []int
			for _, i := range open {
				if f.left[i] > 0 {
					failing = append(failing, i)
				}
			}
			err := handle(ctx, "m")
			calls := f.look()
			slices.Sort(calls)
			require.Equal(t, open, calls, "those that failed, and only those")
			require.Equal(t, failing, stepsOf(err), "every failure is reported")
			if open = failing; err == nil {
				break
			}
		}
	})
}

func stepsOf(err error) (steps []int) {
	if err == nil {
		return nil
	}
	for _, e := range err.(interface{ Unwrap() []error }).Unwrap() {
		steps = append(steps, e.(*dispatch.StepError).Step-1)
	}
	return steps
}

// TestNewDeliveryBeginsAtTheFirst: what a crash forgets is done again.
func TestNewDeliveryBeginsAtTheFirst(t *testing.T) {
	t.Parallel()
	for name, broadcast := range map[string]func(...dispatch.Handler[string]) dispatch.Handler[string]{
		"sequential": dispatch.Sequential[string], "parallel": dispatch.Parallel[string],
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &flaky{left: []int{0, 2}}
			handle := broadcast(f.handlers()...)
			require.Error(t, handle(dispatch.WithDelivery(t.Context()), "m"))
			require.Error(t, handle(dispatch.WithDelivery(t.Context()), "m"))
			require.NoError(t, handle(t.Context(), "m"))
			calls := f.look()
			slices.Sort(calls)
			require.Equal(t, []int{0, 0, 0, 1, 1, 1}, calls)
		})
	}
}

// TestBroadcastsNest: each remembers for itself, and a batch is not one delivery.
func TestBroadcastsNest(t *testing.T) {
	t.Parallel()
	f := &flaky{left: []int{0, 0, 2, 1}}
	h := f.handlers()
	handle := dispatch.Sequential(h[0], dispatch.Parallel(h[1], h[2]), h[3])
	ctx := dispatch.WithDelivery(t.Context())
	var calls [][]int
	for range 4 {
		err := handle(ctx, "m")
		now := f.look()
		slices.Sort(now)
		calls = append(calls, now)
		require.Equal(t, len(calls) < 4, err != nil)
	}
	require.Equal(t, [][]int{{0, 1, 2}, {2}, {2, 3}, {3}}, calls)

	f = &flaky{left: []int{0, 1}}
	both := dispatch.Each(dispatch.Sequential(f.handlers()...))
	errs := both(dispatch.WithDelivery(t.Context()), []string{"a", "b"})
	require.Error(t, errs[0])
	require.NoError(t, errs[1])
	require.Equal(t, []int{0, 1, 0, 1}, f.look(), "b does not go on where a failed")
}

// TestSequentialStopsWithItsContext: the handlers not begun are still to run.
func TestSequentialStopsWithItsContext(t *testing.T) {
	t.Parallel()
	stop := errors.New("stopped")
	delivery := dispatch.WithDelivery(t.Context())
	ctx, cancel := context.WithCancelCause(delivery)
	var calls []int
	handle := dispatch.Sequential(
		func(context.Context, string) error { calls = append(calls, 1); cancel(stop); return nil },
		func(context.Context, string) error { calls = append(calls, 2); return nil },
	)
	require.ErrorIs(t, handle(ctx, "m"), stop)
	require.Equal(t, []int{1}, calls)
	require.NoError(t, handle(delivery, "m"))
	require.Equal(t, []int{1, 2}, calls)
}

func TestAdapters(t *testing.T) {
	t.Parallel()
	handle := func(_ context.Context, m string) error {
		switch m {
		case "bad":
			return errBoom
		case "worse":
			panic(m)
		}
		return nil
	}
	each := dispatch.Each(handle)
	require.Nil(t, each(t.Context(), []string{"a", "b"}))
	errs := each(t.Context(), []string{"a", "bad", "worse", "b"})
	require.Len(t, errs, 4)
	require.ErrorIs(t, errs[1], errBoom)
	require.ErrorContains(t, errs[2], "panic: worse")
	require.NoError(t, errors.Join(errs[0], errs[3]), "each whatever became of the others")

	one := dispatch.One(each)
	require.NoError(t, one(t.Context(), "a"))
	require.ErrorIs(t, one(t.Context(), "bad"), errBoom)
	wrong := dispatch.One(func(context.Context, []string) []error { return []error{nil, errBoom} })
	require.ErrorIs(t, wrong(t.Context(), "a"), errBoom)
}
