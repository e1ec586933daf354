package e2e_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/suite/e2e"
	"github.com/pillarbox/pillarbox/shared/reconcile"
)

// crashRounds is the number of faults per run: few in every test run, as many
// as PILLARBOX_CRASH_N says in "make crash".
func crashRounds(t *testing.T, few int) int {
	t.Helper()
	text := os.Getenv("PILLARBOX_CRASH_N")
	if text == "" {
		return few
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err, "PILLARBOX_CRASH_N")
	return n
}

// crashSeed is PILLARBOX_CRASH_SEED, or a new one; it is printed.
func crashSeed(t *testing.T) uint64 {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("PILLARBOX_CRASH_SEED"); text != "" && text != "0" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err, "PILLARBOX_CRASH_SEED")
	}
	t.Logf("seed %d", seed)
	return seed
}

// underLoad runs do while shops work on the line, with a mail server that takes
// every third mail away, and then waits for conservation: every acknowledged
// fact has its effects, in version order, and nothing else is there.
func underLoad(t *testing.T, line e2e.Line, seed uint64, do func(ctx context.Context, facts func() int)) {
	t.Helper()
	watchedLoad(t, line, seed, line.Pickup, t.TempDir(), do)
}

// watchedLoad is underLoad with a folder to watch that is not the pickup folder's
// path (but the same folder), and one for what is taken away.
func watchedLoad(t *testing.T, line e2e.Line, seed uint64, folder, taken string, do func(ctx context.Context, facts func() int)) {
	t.Helper()
	mails, err := e2e.WatchAppearance(folder, taken, 3)
	require.NoError(t, err)
	defer func() { require.NoError(t, mails.Stop()) }()
	loadInto(t, line, seed, mails, do)
	all, err := mails.Mails()
	require.NoError(t, err)
	require.NoError(t, e2e.InVersionOrder(all))
	strictlyParsed(t, folder)
	strictlyParsed(t, taken)
}

// loadInto is the load and the conservation, with the mails as box sees them.
func loadInto(t *testing.T, line e2e.Line, seed uint64, box e2e.Mails, do func(ctx context.Context, facts func() int)) {
	t.Helper()
	truth := &e2e.Truth{}
	client := e2e.NewClient(truth, line.Stores...)
	client.GiveUp = 2 * time.Minute

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	loaded := make(chan error, 1)
	go func() {
		loaded <- e2e.Load{Client: client, Workers: 6, Seed: seed, Pause: 60 * time.Millisecond}.Run(ctx)
	}()
	alarms := make(chan error, 1)
	looks := 0
	go func() { alarms <- falseAlarms(ctx, line, &looks) }()
	do(ctx, truth.Count)
	healed := time.Now()
	stop()
	require.NoError(t, <-loaded)
	require.NoError(t, <-alarms)
	require.NoError(t, line.WaitConserved(t.Context(), truth, box, 2*time.Minute))
	t.Logf("%d facts conserved %s after the last fault; %d requests tried again; reconciled %d times under load",
		truth.Count(), time.Since(healed).Round(time.Millisecond), client.Retried.Load(), looks)
	require.NoError(t, line.Reconcile(t.Context()))
}

// falseAlarms reconciles again and again while things move and die, until ctx ends. Who is down cannot be asked; nothing may be
// found.
func falseAlarms(ctx context.Context, line e2e.Line, looks *int) error {
	for ctx.Err() == nil {
		report, err := line.Report(ctx, reconcile.Config{})
		switch {
		case err == nil && report.Total() > 0:
			return fmt.Errorf("reconcile under load: %+v", report.Findings)
		case err == nil:
			*looks++
		}
		select {
		case <-ctx.Done():
		case <-time.After(500 * time.Millisecond):
		}
	}
	return nil
}

// TestCrashesOfTheSuite kills, stops and freezes the one-process shape.
func TestCrashesOfTheSuite(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		few int
		env []string
	}{"parallel": {8, nil}, "sequential": {4, sequential()}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seed := crashSeed(t)
			suite := startSuiteProcess(t, c.env...)
			underLoad(t, suite.Line(), seed, func(ctx context.Context, _ func() int) {
				chaos := e2e.Chaos{Processes: []*e2e.Process{suite.Process}, Seed: seed, Rounds: crashRounds(t, c.few), Freeze: 5, Every: 700 * time.Millisecond}
				report, err := chaos.Run(ctx)
				require.NoError(t, err)
				t.Log(report)
			})
		})
	}
}

// TestCrashesOfServices does the same to any of the separate processes.
func TestCrashesOfServices(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		replicas, few int
		env           []string
	}{"one": {1, 8, nil}, "three": {3, 8, nil}, "sequential": {3, 4, sequential()}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seed := crashSeed(t)
			cluster := startCluster(t, c.replicas, c.env...)
			underLoad(t, cluster.Line(), seed, func(ctx context.Context, _ func() int) {
				chaos := e2e.Chaos{Processes: cluster.All(), Seed: seed, Rounds: crashRounds(t, c.few), Freeze: 15, Every: 700 * time.Millisecond}
				report, err := chaos.Run(ctx)
				require.NoError(t, err)
				t.Log(report)
			})
		})
	}
}

// startSuiteProcess starts the one-process shape as a process.
func startSuiteProcess(t *testing.T, env ...string) *e2e.SuiteProcess {
	t.Helper()
	b, err := binaries()
	require.NoError(t, err)
	dir := t.TempDir()
	suite, err := e2e.NewSuiteProcess(b, dir, env...)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, suite.Stop())
		if t.Failed() {
			showLog(t, filepath.Join(dir, "suite.log"))
		}
	})
	require.NoError(t, suite.Run(t.Context()))
	return suite
}
