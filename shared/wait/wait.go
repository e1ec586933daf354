// Package wait pauses work that goes on until its context ends.
package wait

import (
	"context"
	"math/rand/v2"
	"time"
)

// For waits for d and reports whether ctx is still alive.
func For(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// Jitter keeps replicas from doing things in step: a fifth either way.
func Jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64()))
}
