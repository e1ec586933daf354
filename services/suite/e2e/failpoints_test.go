package e2e_test

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/suite/e2e"
	"github.com/pillarbox/pillarbox/shared/failpoint"
)

// steps are all named failpoints that a steady load reaches, and refillSteps
// those that a lost broker store reaches. The first word is the service.
var (
	steps = []string{
		"store.intake.before_commit", "store.intake.after_commit",
		"store.relay.read", "store.relay.published", "store.relay.settled",
		"mailer.staged", "mailer.inserted", "mailer.before_commit", "mailer.after_commit", "mailer.committed",
		"mailer.renamed", "mailer.published", "mailer.after_done", "mailer.accepted",
		"audit.entries_written", "audit.before_commit", "audit.after_commit", "audit.after_done",
		"loyalty.ledger_written", "loyalty.before_commit", "loyalty.after_commit", "loyalty.after_done",
	}
	refillSteps = []string{"store.refill.listed", "store.refill.begun", "store.refill.published", "store.refill.ended", "store.relay.stream"}
	// elsewhere are reached only by failures that a healthy line never has; the
	// packages' own tests crash there.
	elsewhere = []string{"waiting_committed", "dead_committed", "sweep_claimed"}
)

// TestEveryFailpointIsCrashedAt reads the source: a new failpoint without a crash
// test is a failure.
func TestEveryFailpointIsCrashedAt(t *testing.T) {
	t.Parallel()
	hit := regexp.MustCompile(`(?:failpoint\.Hit|\.step)\((?:[\w.]+ \+ )?"\.?([\w.]+)"\)`)
	covered := strings.Join(append(append(steps, refillSteps...), elsewhere...), " ") + " "
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

// crashAt lets p run into the failpoint and starts it again without.
func crashAt(t *testing.T, ctx context.Context, p *e2e.Process, step string, count int, between func()) {
	t.Helper()
	require.NoError(t, p.Stop())
	between()
	plain := p.Env
	p.Env = append(append([]string(nil), plain...), failpoint.Environment+fmt.Sprintf("=%s:%d", step, count))
	require.NoError(t, p.Start())
	select {
	case <-p.Ended():
	case <-time.After(deadline):
		require.Fail(t, "never reached", "failpoint %s", step)
	}
	require.NoError(t, p.Kill()) // it is dead; this only takes note
	p.Env = plain
	require.NoError(t, p.Run(ctx))
}

// TestCrashAtEachStepOfTheSuite is the SQLite side.
func TestCrashAtEachStepOfTheSuite(t *testing.T) {
	t.Parallel()
	suite := startSuiteProcess(t)
	underLoad(t, suite.Line(), crashSeed(t), func(ctx context.Context, _ func() int) {
		for _, step := range steps {
			crashAt(t, ctx, suite.Process, step, 3, func() {})
		}
		for _, step := range refillSteps {
			crashAt(t, ctx, suite.Process, step, 1, func() { require.NoError(t, os.RemoveAll(filepath.Join(suite.Dir, "nats"))) })
		}
	})
}

// TestCrashAtEachStepOfServices is the PostgreSQL side: only the service that
// owns the step dies, and its one replica comes back.
func TestCrashAtEachStepOfServices(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t, 1)
	underLoad(t, cluster.Line(), crashSeed(t), func(ctx context.Context, _ func() int) {
		owner := func(step string) *e2e.Process {
			service, _, _ := strings.Cut(step, ".")
			return cluster.Services[service][0]
		}
		for _, step := range steps {
			crashAt(t, ctx, owner(step), step, 3, func() {})
		}
		for _, step := range refillSteps {
			crashAt(t, ctx, owner(step), step, 1, func() {
				require.NoError(t, cluster.NATS.Kill())
				require.NoError(t, os.RemoveAll(cluster.NATSStore()))
				require.NoError(t, cluster.NATS.Run(ctx))
			})
		}
	})
}
