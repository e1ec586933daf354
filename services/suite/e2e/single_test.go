package e2e_test

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/suite/all"
	"github.com/pillarbox/pillarbox/services/suite/e2e"
)

// singles are the settings of a line in which one replica of each service consumes.
func singles(lease time.Duration) []string {
	var env []string
	for _, service := range []string{"MAILER", "AUDIT", "LOYALTY"} {
		env = append(env, "PILLARBOX_"+service+"_MODE=single", "PILLARBOX_"+service+"_LEASE="+lease.String())
	}
	return env
}

// mailers are the replicas of the mailer, of which one leads.
type mailers struct {
	t        *testing.T
	replicas []*e2e.Process
	admins   []string
}

func mailersOf(t *testing.T, c *e2e.Cluster) mailers {
	n := len(c.Services["mailer"])
	first := slices.Index(all.Names(), "mailer") * n
	return mailers{t, c.Services["mailer"], c.Line().Admins[first : first+n]}
}

// metric is that of one replica; 0 while it does not answer.
func (m mailers) metric(replica int, name string, labels ...string) float64 {
	n, err := e2e.Line{Admins: m.admins[replica : replica+1]}.Metric(m.t.Context(), "pillarbox_mailer_"+name, labels...)
	if err != nil {
		return 0
	}
	return n
}

func (m mailers) done(replica int) float64 {
	return m.metric(replica, "consumer_events_total", `result="done"`)
}

// leader waits until one of them leads.
func (m mailers) leader() (leader, follower int) {
	m.t.Helper()
	require.Eventually(m.t, func() bool {
		var leading []int
		for i := range m.replicas {
			if m.metric(i, "lease_state", `lease="mailer"`, `state="leading"`) == 1 {
				leading = append(leading, i)
			}
		}
		if len(leading) == 1 {
			leader = leading[0]
		}
		return len(leading) == 1
	}, deadline, 10*time.Millisecond, "no mailer leads, or several")
	return leader, 1 - leader
}

// first returns how long after since the replica has its first event done.
func (m mailers) first(replica int, since time.Time, what string) time.Duration {
	m.t.Helper()
	var took time.Duration
	require.Eventually(m.t, func() bool {
		took = time.Since(since)
		return m.done(replica) > 0
	}, deadline, 2*time.Millisecond, "%s: the other mailer does nothing", what)
	return took
}

// TestSingleLeaderFrozen freezes the leading mailer with work in hand for longer than its lease: after it has
// staged mails, and between its look at the term and its commit. The other one leads, and when the first thaws it is
// refused. No mail is doubled.
func TestSingleLeaderFrozen(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t, 2, singles(2*time.Second)...)
	m := mailersOf(t, cluster)
	underLoad(t, cluster.Line(), crashSeed(t), func(ctx context.Context, facts func() int) {
		for _, step := range []string{"mailer.staged:3:pause", "mailer.before_commit:3:pause"} {
			grow(t, facts, 10)
			for _, p := range m.replicas {
				require.NoError(t, p.Stop())
			}
			from := len(m.replicas[0].LogSince(0))
			freezeAt(t, ctx, m.replicas[0], step) // alone, so that it leads
			frozen := time.Now()
			require.NoError(t, m.replicas[1].Run(ctx))
			took := m.first(1, frozen, step)
			require.NoError(t, m.replicas[0].Thaw())
			require.Eventually(t, func() bool { return m.metric(0, "consumer_conflicts_total") > 0 },
				deadline, 10*time.Millisecond, "%s: the leader of the past was not refused", step)
			logged(t, m.replicas[0], from, "write refused: another replica leads")
			t.Logf("%s: the other mailer's first mail %s after the freeze", step, took.Round(time.Millisecond))
			grow(t, facts, 10)
			leader, _ := m.leader()
			require.Equal(t, 1, leader)
		}
	})
}

// TestSingleHandOver: the follower is ready, says that it stands by and does nothing. A leader that is told to stop
// hands over long before its lease would end; one that is killed is followed when it has.
func TestSingleHandOver(t *testing.T) {
	t.Parallel()
	const lease = 5 * time.Second // the default
	cluster := startCluster(t, 2, singles(lease)...)
	m := mailersOf(t, cluster)
	underLoad(t, cluster.Line(), crashSeed(t), func(ctx context.Context, facts func() int) {
		var orderly []time.Duration
		for range 4 {
			grow(t, facts, 15)
			leader, follower := m.leader()
			require.Equal(t, "stands by: another replica consumes", noteOf(t, m.admins[follower]))
			require.Empty(t, noteOf(t, m.admins[leader]))
			require.Zero(t, m.done(follower))
			require.Positive(t, m.done(leader))
			told := time.Now()
			ended := make(chan error, 1)
			go func() { ended <- m.replicas[leader].Stop() }()
			orderly = append(orderly, m.first(follower, told, "SIGTERM").Round(time.Millisecond))
			require.NoError(t, <-ended)
			require.NoError(t, m.replicas[leader].Run(ctx))
		}
		grow(t, facts, 15)
		leader, follower := m.leader()
		require.NoError(t, m.replicas[leader].Kill())
		killed := m.first(follower, time.Now(), "SIGKILL").Round(time.Millisecond)
		require.NoError(t, m.replicas[leader].Run(ctx))
		grow(t, facts, 15)
		t.Logf("lease %s: from SIGTERM to the other's first mail %v; from SIGKILL %s", lease, orderly, killed)
		for _, took := range orderly {
			require.Less(t, took, lease/2, "it waited for the lease to end")
		}
		const slack = 2 * time.Second // for a machine that does much else
		require.Less(t, killed, lease+time.Second+slack)
	})
	for i := range m.replicas {
		require.Zero(t, m.metric(i, "consumer_conflicts_total"), "who hands over has nothing refused")
	}
}

// noteOf requires that the one service behind the admin port is ready, and returns its note.
func noteOf(t *testing.T, admin string) string {
	t.Helper()
	answer, err := http.Get(admin + "/ready")
	require.NoError(t, err)
	defer answer.Body.Close()
	require.Equal(t, http.StatusOK, answer.StatusCode)
	var body struct {
		Notes map[string]string `json:"notes"`
	}
	require.NoError(t, json.NewDecoder(answer.Body).Decode(&body))
	return body.Notes["mailer"]
}
