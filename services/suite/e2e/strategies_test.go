package e2e_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/suite/e2e"
	"github.com/pillarbox/pillarbox/shared/dispatch"
)

// strategies are the ways in which the mailer hands mails to its workers and, the last, its replicas take turns.
func strategies() []string {
	var settings []string
	for _, mode := range dispatch.Modes() {
		settings = append(settings, "PILLARBOX_MAILER_DISPATCH="+string(mode))
	}
	return append(settings, "PILLARBOX_MAILER_MODE=single")
}

// eachStrategy lets the processes that mail work with one strategy after another while load goes on, and kills one of
// them in each.
func eachStrategy(t *testing.T, line e2e.Line, processes ...*e2e.Process) {
	underLoad(t, line, crashSeed(t), func(ctx context.Context, facts func() int) {
		for _, setting := range strategies() {
			for _, p := range processes {
				require.NoError(t, p.Stop())
				plain := p.Env
				p.Env = append(slices.Clone(plain), "PILLARBOX_MAILER_WORKERS=3", "PILLARBOX_MAILER_LEASE=1s", setting)
				err := p.Run(ctx)
				p.Env = plain
				require.NoError(t, err)
			}
			grow(t, facts, 15)
			victim := processes[len(processes)-1]
			require.NoError(t, victim.Kill())
			require.NoError(t, victim.Run(ctx))
			grow(t, facts, 15)
			require.Eventually(t, func() bool {
				n, err := line.Metric(ctx, "pillarbox_mailer_consumer_events_total", `result="done"`)
				return err == nil && n > 0
			}, deadline, 20*time.Millisecond, "%s: no mail", setting)
		}
	})
}

func TestEachStrategyInTheSuite(t *testing.T) {
	t.Parallel()
	suite := startSuiteProcess(t)
	eachStrategy(t, suite.Line(), suite.Process)
}

func TestEachStrategyInReplicas(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t, 2)
	eachStrategy(t, cluster.Line(), cluster.Services["mailer"]...)
}
