package drill

import (
	"context"
	"fmt"
	"math/rand/v2"
	"syscall"
	"time"
)

const (
	// between is the longest time from a recovery to the next fault; the shortest is a tenth.
	between = 2 * time.Second
	// patience bounds the wait for a mail after a restart.
	patience = 30 * time.Second
)

// harm does the faults; afterwards the suite runs and is ready.
func (s *scene) harm(ctx context.Context) error {
	random := rand.New(rand.NewPCG(s.Seed, 1))
	until := time.Now().Add(s.Duration)
	var recoveries []time.Duration
	for n := 0; s.Faults > 0 && n < s.Faults || s.Faults == 0 && time.Now().Before(until); n++ {
		if err := rest(ctx, between/10+time.Duration(random.Int64N(int64(between*9/10)))); err != nil {
			return err
		}
		if !s.suite.Alive() {
			s.report.Ended++
		}
		took, err := s.fault(ctx, random)
		if err != nil {
			return fmt.Errorf("fault %d: %w", n+1, err)
		}
		recoveries = append(recoveries, took)
	}
	s.report.recovered(recoveries)
	return nil
}

// fault does one, and returns the time to the first mail after it.
func (s *scene) fault(ctx context.Context, random *rand.Rand) (time.Duration, error) {
	down := time.Duration(random.Int64N(int64(500 * time.Millisecond)))
	kind := random.IntN(100)
	switch {
	case kind < 15 && s.suite.Alive():
		s.report.Freezes++
		if err := s.suite.Signal(syscall.SIGSTOP); err != nil {
			return 0, err
		}
		if err := rest(ctx, s.Freeze); err != nil {
			return 0, err
		}
		seen := s.appeared()
		begun := time.Now()
		if err := s.suite.Thaw(); err != nil {
			return 0, err
		}
		return s.recover(ctx, begun, seen, s.suite.WaitReady)
	case kind < 40 && s.suite.Alive():
		s.report.Stops++
		if err := s.suite.Stop(); err != nil {
			return 0, err
		}
	default:
		s.report.Kills++
		if err := s.suite.Kill(); err != nil {
			return 0, err
		}
	}
	if err := rest(ctx, down); err != nil {
		return 0, err
	}
	return s.recover(ctx, time.Now(), s.appeared(), s.suite.Run)
}

// recover waits until the suite is ready and a mail has appeared. A time at the bound says that none did.
func (s *scene) recover(ctx context.Context, begun time.Time, seen int, ready func(context.Context) error) (time.Duration, error) {
	if err := ready(ctx); err != nil {
		return 0, err
	}
	for s.appeared() == seen && time.Since(begun) < patience {
		if err := rest(ctx, 10*time.Millisecond); err != nil {
			return 0, err
		}
	}
	return time.Since(begun), nil
}

func (s *scene) appeared() int {
	mails, _ := s.mails.Mails() // what was wrong with one is found at the end
	return len(mails)
}

func rest(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}
