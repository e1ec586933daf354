package wait_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/shared/wait"
)

func TestFor(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	begun := time.Now()
	require.True(t, wait.For(ctx, 20*time.Millisecond))
	require.GreaterOrEqual(t, time.Since(begun), 20*time.Millisecond)
	time.AfterFunc(10*time.Millisecond, cancel)
	require.False(t, wait.For(ctx, time.Hour))
}

func TestJitter(t *testing.T) {
	t.Parallel()
	low, high := time.Hour, time.Duration(0)
	for range 1000 {
		d := wait.Jitter(time.Minute)
		low, high = min(low, d), max(high, d)
	}
	require.GreaterOrEqual(t, low, 48*time.Second)
	require.LessOrEqual(t, high, 72*time.Second)
	require.Greater(t, high-low, 12*time.Second)
}
