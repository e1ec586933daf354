package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"time"
)

// FrozenFor is how long a pause lasts: beyond the ack deadline and the lease
// (5 s each), so that others have taken over when the process thaws.
const FrozenFor = 7 * time.Second

// Chaos does random harm to processes, one at a time, from a seed.
type Chaos struct {
	Processes []*Process
	Seed      uint64
	Rounds    int
	// Freeze says how many of a hundred rounds pause instead of ending a process.
	Freeze int
	// Every is the mean time between two faults.
	Every time.Duration
}

// Report is what was done.
type Report struct {
	Kills, Stops, Pauses int
	// WorstReady is the longest time from a start to readiness.
	WorstReady time.Duration
	Steps      []string
}

func (r Report) String() string {
	return fmt.Sprintf("%d kills, %d stops, %d pauses, worst start to ready %s", r.Kills, r.Stops, r.Pauses, r.WorstReady.Round(time.Millisecond))
}

// Run does its rounds; afterwards every process runs and is ready.
func (c Chaos) Run(ctx context.Context) (Report, error) {
	random := rand.New(rand.NewPCG(c.Seed, 0))
	var report Report
	for round := range c.Rounds {
		select {
		case <-ctx.Done():
			return report, context.Cause(ctx)
		case <-time.After(c.Every/2 + time.Duration(random.Int64N(int64(c.Every)))):
		}
		p := c.Processes[random.IntN(len(c.Processes))]
		if err := c.harm(ctx, random, p, &report); err != nil {
			return report, fmt.Errorf("round %d (%s): %w", round, strings.Join(report.Steps, ", "), err)
		}
	}
	return report, nil
}

func (c Chaos) harm(ctx context.Context, random *rand.Rand, p *Process, report *Report) error {
	down := time.Duration(random.Int64N(int64(500 * time.Millisecond)))
	switch kind := random.IntN(100); {
	case kind < c.Freeze:
		report.Pauses++
		report.Steps = append(report.Steps, "pause "+p.Name)
		if err := p.Signal(syscall.SIGSTOP); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(FrozenFor):
		}
		return p.Signal(syscall.SIGCONT)
	case kind < c.Freeze+(100-c.Freeze)/4:
		report.Stops++
		report.Steps = append(report.Steps, "stop "+p.Name)
		if err := p.Stop(); err != nil {
			return err
		}
	default:
		report.Kills++
		report.Steps = append(report.Steps, "kill "+p.Name)
		if err := p.Kill(); err != nil {
			return err
		}
	}
	select {
	case <-ctx.Done():
	case <-time.After(down):
	}
	started := time.Now()
	if err := p.Run(ctx); err != nil {
		return err
	}
	report.WorstReady = max(report.WorstReady, time.Since(started))
	return nil
}
