package dispatch_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/shared/dispatch"
)

func TestRetryWaitsLongerAndLonger(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var at []time.Duration
		start := time.Now()
		handle := dispatch.Retry(dispatch.Retries{Attempts: 4, Backoff: time.Second, MaxBackoff: 2 * time.Second},
			func(context.Context, int) error { at = append(at, time.Since(start)); return errBoom })
		require.ErrorIs(t, handle(t.Context(), 1), errBoom)
		require.Len(t, at, 4)
		for i, want := range []time.Duration{time.Second, 2 * time.Second, 2 * time.Second} {
			require.InDelta(t, want, at[i+1]-at[i], 0.21*float64(want))
		}
	})
}

func TestRetryEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		stop := errors.New("stopped")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(stop) })
		calls := 0
		handle := dispatch.Retry(dispatch.Retries{Backoff: time.Minute, MaxBackoff: time.Minute},
			func(context.Context, int) error { calls++; return errBoom })
		start := time.Now()
		err := handle(ctx, 1)
		require.ErrorIs(t, err, errBoom)
		require.ErrorIs(t, err, stop)
		require.Equal(t, 1, calls)
		require.Equal(t, time.Second, time.Since(start))
	})
}

func TestRetryKnowsWhatIsHopeless(t *testing.T) {
	t.Parallel()
	calls := 0
	handle := dispatch.Retry(dispatch.Retries{Backoff: time.Nanosecond, Again: func(err error) bool { return !errors.Is(err, errBoom) }},
		func(context.Context, int) error {
			if calls++; calls == 1 {
				panic("once")
			}
			return errBoom
		})
	require.ErrorIs(t, handle(t.Context(), 1), errBoom)
	require.Equal(t, 2, calls)
}

// TestRetryWithinRetryIsOneDelivery: what has succeeded is done, at every depth.
func TestRetryWithinRetryIsOneDelivery(t *testing.T) {
	t.Parallel()
	f := &flaky{left: []int{0, 0, 3}}
	h := f.handlers()
	twice := dispatch.Retries{Attempts: 2, Backoff: time.Nanosecond}
	handle := dispatch.Retry(twice, dispatch.Sequential(h[0], dispatch.Retry(twice, dispatch.Sequential(h[1], h[2]))))
	require.NoError(t, handle(t.Context(), "m"))
	require.Equal(t, []int{0, 1, 2, 2, 2, 2}, f.look())
	require.NoError(t, handle(t.Context(), "the next message"))
	require.Equal(t, []int{0, 1, 2}, f.look())
}
