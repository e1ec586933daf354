package dispatch

import (
	"context"
	"errors"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// Retries says how Retry tries again; zero values mean the defaults.
type Retries struct {
	Attempts   int              // in all. Default 3
	Backoff    time.Duration    // before the second attempt; doubles, with jitter. Default 50 ms
	MaxBackoff time.Duration    // default 1 s
	Again      func(error) bool // whether another attempt makes sense. Default: for every error
}

// Retry calls next again when it fails, within one delivery: broadcasts below
// resume where they failed. It returns the last error, with that of the context
// when it ended meanwhile. It holds its worker or caller while it waits, so it
// is for faults of a moment; longer ones belong to who can park the message.
func Retry[T any](r Retries, next Handler[T]) Handler[T] {
	if r.Attempts <= 0 {
		r.Attempts = 3
	}
	if r.Backoff <= 0 {
		r.Backoff = 50 * time.Millisecond
	}
	if r.MaxBackoff <= 0 {
		r.MaxBackoff = time.Second
	}
	return func(ctx context.Context, message T) error {
		if deliveryOf(ctx) == nil { // a Retry within a Retry goes on with the delivery of the outer one
			ctx = WithDelivery(ctx)
		}
		err := call(ctx, next, message)
		if err == nil {
			return nil
		}
		waits := backoff.ExponentialBackOff{
			InitialInterval: r.Backoff, MaxInterval: r.MaxBackoff, Multiplier: 2, RandomizationFactor: 0.2,
		}
		waits.Reset()
		for try := 1; try < r.Attempts && (r.Again == nil || r.Again(err)); try++ {
			if stopped := wait(ctx, waits.NextBackOff()); stopped != nil {
				return errors.Join(err, stopped)
			}
			if err = call(ctx, next, message); err == nil {
				return nil
			}
		}
		return err
	}
}

// wait returns the context's cause when it ended first.
func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
