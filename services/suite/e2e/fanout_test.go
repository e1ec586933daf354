package e2e_test

import (
	"context"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/pillarbox/pillarbox/services/suite/e2e"
)

// sequential are the settings of sequential fan-out with the default route: mailer, audit, loyalty.
func sequential() []string { return []string{"PILLARBOX_FANOUT=sequential"} }

// TestNextOnlyAfterPrevious: while the first subscriber of the route cannot do its work, the others see nothing of what
// is new, and once it can everything comes to all of them.
func TestNextOnlyAfterPrevious(t *testing.T) {
	t.Parallel()
	t.Run("suite", func(t *testing.T) {
		t.Parallel()
		suite := startSuiteProcess(t, sequential()...)
		away := suite.Line().Pickup + "-away"
		nextOnlyAfterPrevious(t, suite.Line(), func() {
			require.NoError(t, os.Rename(suite.Line().Pickup, away))
		}, func() {
			require.NoError(t, os.Rename(away, suite.Line().Pickup))
		})
	})
	t.Run("replicas", func(t *testing.T) {
		t.Parallel()
		cluster := startCluster(t, 3, sequential()...)
		nextOnlyAfterPrevious(t, cluster.Line(), func() {
			for _, p := range cluster.Services["mailer"] {
				require.NoError(t, p.Stop())
			}
		}, func() {
			for _, p := range cluster.Services["mailer"] {
				require.NoError(t, p.Run(t.Context()))
			}
		})
	})
}

func nextOnlyAfterPrevious(t *testing.T, line e2e.Line, hinder, mend func()) {
	b := begin(t, line)
	b.placeChangeCancel(t, 20)
	b.conserved(t)
	hinder()
	before := len(b.truth.Facts())
	late := b.placeChangeCancel(t, 5)
	// A thing that does not happen has no signal: as long as all of it took before, and then some.
	deadline := time.After(2 * time.Second)
	for waiting := true; waiting; {
		for _, order := range late {
			entries, err := b.AuditEntries(b.ctx, order)
			require.NoError(t, err)
			require.Empty(t, entries, "audit comes after the mailer")
		}
		select {
		case <-deadline:
			waiting = false
		case <-time.After(100 * time.Millisecond):
		}
	}
	require.Equal(t, before+15, len(b.truth.Facts()))
	mend()
	b.conserved(t)
}

// placeChangeCancel makes n orders of three versions each, at once, and returns their ids.
func (b *bench) placeChangeCancel(t *testing.T, n int) []string {
	t.Helper()
	ids := make([]string, n)
	g, ctx := errgroup.WithContext(b.ctx)
	for i := range n {
		g.Go(func() error {
			o, err := b.client.Place(ctx, e2e.Body("ada@example.com", "EUR", 2, "4.50"))
			if err != nil {
				return err
			}
			ids[i] = o.ID
			if o, err = b.client.Change(ctx, o, 3, "4.50"); err != nil {
				return err
			}
			_, err = b.client.Cancel(ctx, o)
			return err
		})
	}
	require.NoError(t, g.Wait())
	return ids
}

// TestCrashAtEachStepOfARoute dies between the effect and the handing on, and between that and the acknowledgement.
func TestCrashAtEachStepOfARoute(t *testing.T) {
	t.Parallel()
	t.Run("suite", func(t *testing.T) {
		t.Parallel()
		suite := startSuiteProcess(t, sequential()...)
		underLoad(t, suite.Line(), crashSeed(t), func(ctx context.Context, _ func() int) {
			for _, step := range routeSteps {
				crashAt(t, ctx, suite.Process, step, 3, func() {})
			}
		})
	})
	t.Run("services", func(t *testing.T) {
		t.Parallel()
		cluster := startCluster(t, 1, sequential()...)
		underLoad(t, cluster.Line(), crashSeed(t), func(ctx context.Context, _ func() int) {
			for _, step := range routeSteps {
				crashAt(t, ctx, ownerIn(cluster)(step), step, 3, func() {})
			}
		})
	})
}

// TestFanoutIsSwitchedUnderLoad: only the store knows the mode. What is under way goes on as it began, also when it has
// to wait for the subscriber that is down.
func TestFanoutIsSwitchedUnderLoad(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t, 2)
	underLoad(t, cluster.Line(), crashSeed(t), func(ctx context.Context, facts func() int) {
		for n, mode := range [][]string{
			sequential(), {"PILLARBOX_FANOUT=parallel"},
			{"PILLARBOX_FANOUT=sequential", "PILLARBOX_FANOUT_ROUTE=loyalty,mailer,audit"}, nil,
		} {
			hindered := cluster.Services[[]string{"mailer", "audit", "loyalty"}[n%3]]
			for _, p := range hindered {
				require.NoError(t, p.Kill())
			}
			for _, p := range cluster.Services["store"] { // one after another: for a while the modes are mixed
				require.NoError(t, p.Stop())
				p.Env = slices.DeleteFunc(p.Env, func(e string) bool { return strings.HasPrefix(e, "PILLARBOX_FANOUT") })
				p.Env = append(p.Env, mode...)
				require.NoError(t, p.Run(ctx))
			}
			enough := facts() + 20
			require.Eventually(t, func() bool { return facts() >= enough }, deadline, 10*time.Millisecond)
			for _, p := range hindered {
				require.NoError(t, p.Run(ctx))
			}
		}
	})
}
