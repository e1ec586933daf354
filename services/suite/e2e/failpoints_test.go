package e2e_test

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/suite/e2e"
	"github.com/pillarbox/pillarbox/shared/failpoint"
)

// The named failpoints by what reaches them; the first word is the service.
var (
	// steps: a steady load.
	steps = []string{
		"store.intake.before_commit", "store.intake.after_commit",
		"store.relay.read", "store.relay.published", "store.relay.settled",
		"mailer.staged", "mailer.inserted", "mailer.before_commit", "mailer.after_commit", "mailer.committed",
		"mailer.renamed", "mailer.published", "mailer.after_done", "mailer.accepted",
		"audit.entries_written", "audit.before_commit", "audit.after_commit", "audit.after_done",
		"loyalty.ledger_written", "loyalty.before_commit", "loyalty.after_commit", "loyalty.after_done",
	}
	// routeSteps: a steady load with sequential fan-out.
	routeSteps = []string{"mailer.forward_pending", "mailer.forwarded", "audit.forward_pending", "audit.forwarded"}
	// smtpSteps: a steady load with a mail server instead of the pickup folder (see smtp_test.go).
	smtpSteps = []string{"mailer.inserted", "mailer.claimed", "mailer.dotted", "mailer.answered", "mailer.settled"}
	// startSteps: a start under load, the first time that they are passed.
	startSteps = []string{"store.purge.done"}
	// firstSteps: the first start ever, when the stream is made and the database knows of none.
	firstSteps = []string{"store.relay.stream"}
	// refillSteps: a start that finds the broker's store lost. The relay's own steps are
	// within the refill then: its page is read, published, written down.
	refillSteps = []string{
		"store.refill.listed", "store.refill.begun",
		"store.relay.read", "store.relay.published", "store.relay.settled",
		"store.refill.published", "store.refill.ended",
	}
	// replaySteps: a new subscriber that wants all of the past (see subscriber_test.go).
	replaySteps = []string{
		"store.replay.read", "store.replay.published", "store.replay.settled",
		"store.replay.acknowledged", "store.replay.handled",
	}
	// elsewhere: only failures that a healthy line never has; the packages' own tests
	// crash there.
	elsewhere = []string{"waiting_committed", "dead_committed", "sweep_claimed", "acknowledged_first"}
)

// TestEveryFailpointIsCrashedAt reads the source: a new failpoint without a crash
// test is a failure.
func TestEveryFailpointIsCrashedAt(t *testing.T) {
	t.Parallel()
	hit := regexp.MustCompile(`(?:failpoint\.Hit|\.step)\((?:[\w.]+ \+ )?"\.?([\w.]+)"\)`)
	covered := strings.Join(slices.Concat(steps, smtpSteps, redriveSteps, routeSteps, startSteps, firstSteps, refillSteps, replaySteps, elsewhere), " ") + " "
	found := 0
	err := filepath.WalkDir("../../..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		for _, match := range hit.FindAllStringSubmatch(string(source), -1) {
			found++
			require.Contains(t, covered, match[1]+" ", "%s: no test crashes at this failpoint", path)
		}
		return err
	})
	require.NoError(t, err)
	require.Greater(t, found, 15, "the pattern no longer finds the calls")
}

// crashAt stops p, lets between happen, lets p run into the failpoint and starts it
// again without.
func crashAt(t *testing.T, ctx context.Context, p *e2e.Process, step string, count int, between func()) {
	t.Helper()
	require.NoError(t, p.Stop())
	between()
	runInto(t, p, step, count)
	require.NoError(t, p.Run(ctx))
}

// runInto starts p and waits until it has died at the failpoint.
func runInto(t *testing.T, p *e2e.Process, step string, count int) {
	t.Helper()
	plain := p.Env
	p.Env = append(slices.Clone(plain), fmt.Sprintf("%s=%s:%d", failpoint.Environment, step, count))
	defer func() { p.Env = plain }()
	require.NoError(t, p.Start())
	select {
	case <-p.Ended():
	case <-time.After(deadline):
		require.Fail(t, "never reached", "failpoint %s", step)
	}
	require.NoError(t, p.Kill()) // it is dead; this only takes note
}

// crashAtEach does it at all of the steps, and at those of lost within a refill.
func crashAtEach(t *testing.T, ctx context.Context, owner func(step string) *e2e.Process, lost []string, loseBroker func()) {
	t.Helper()
	nothing := func() {}
	for _, step := range steps {
		crashAt(t, ctx, owner(step), step, 3, nothing)
	}
	for _, step := range startSteps {
		crashAt(t, ctx, owner(step), step, 1, nothing)
	}
	for _, step := range lost {
		crashAt(t, ctx, owner(step), step, 1, loseBroker)
	}
}

// TestCrashAtEachStepOfTheSuite is the SQLite side.
func TestCrashAtEachStepOfTheSuite(t *testing.T) {
	t.Parallel()
	suite := startSuiteProcess(t)
	underLoad(t, suite.Line(), crashSeed(t), func(ctx context.Context, _ func() int) {
		crashAtEach(t, ctx, func(string) *e2e.Process { return suite.Process }, refillSteps, func() {
			require.NoError(t, os.RemoveAll(filepath.Join(suite.Dir, "nats")))
		})
	})
}

// TestCrashAtEachStepOfServices is the PostgreSQL side: only the service that
// owns the step dies, and its one replica comes back.
func TestCrashAtEachStepOfServices(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t, 1)
	underLoad(t, cluster.Line(), crashSeed(t), func(ctx context.Context, _ func() int) {
		owner := ownerIn(cluster)
		lost := refillSteps
		if testing.Short() { // each waits until the lease of the dead leader ends
			lost = []string{"store.refill.begun", "store.relay.published"}
		}
		crashAtEach(t, ctx, owner, lost, func() {
			require.NoError(t, cluster.NATS.Kill())
			require.NoError(t, os.RemoveAll(cluster.NATSStore()))
			require.NoError(t, cluster.NATS.Run(ctx))
		})
	})
}

// ownerIn returns the process of a cluster that reaches a step.
func ownerIn(c *e2e.Cluster) func(step string) *e2e.Process {
	return func(step string) *e2e.Process {
		service, _, _ := strings.Cut(step, ".")
		return c.Services[service][0]
	}
}

// TestCrashAtTheFirstStart dies on an empty database and an empty broker: the
// next start takes the stream that is there already.
func TestCrashAtTheFirstStart(t *testing.T) {
	t.Parallel()
	b, err := binaries()
	require.NoError(t, err)
	suite, err := e2e.NewSuiteProcess(b, t.TempDir())
	require.NoError(t, err)
	for _, step := range firstSteps {
		runInto(t, suite.Process, step, 1)
	}
	require.NoError(t, suite.Run(t.Context()))
	t.Cleanup(func() { require.NoError(t, suite.Stop()) })
	bench := begin(t, suite.Line())
	_, err = bench.client.Place(bench.ctx, e2e.Body("ada@example.com", "EUR", 1, "1.00"))
	require.NoError(t, err)
	bench.conserved(t)
}
