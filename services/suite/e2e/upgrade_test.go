package e2e_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/suite/all"
	"github.com/pillarbox/pillarbox/services/suite/e2e"
	"github.com/pillarbox/pillarbox/shared/events"
)

// earlier is a commit whose services and schemas were in use: from before the routes, the replays, the delivery
// policies and the SMTP transport.
const earlier = "1f91fd6"

// earlierBinaries builds the services of that commit, once; it returns why there are none where the history is not there.
var earlierBinaries = sync.OnceValues(func() (missing string, err error) {
	root, source := filepath.Join("..", "..", ".."), filepath.Join(buildDir(), "earlier")
	if out, err := exec.Command("git", "-C", root, "cat-file", "-e", earlier+"^{commit}").CombinedOutput(); err != nil {
		return strings.TrimSpace(string(out) + err.Error()), nil
	}
	if err := os.MkdirAll(filepath.Join(source, "bin"), 0o755); err != nil {
		return "", err
	}
	script := `git -C "$1" archive "$2" | tar -x -C "$3" && cd "$3" && go build -o bin/ ./services/store ./services/mailer ./services/audit ./services/loyalty`
	cmd := exec.Command("bash", "-o", "pipefail", "-c", script, "build", root, earlier, source)
	cmd.Stderr = os.Stderr
	return "", cmd.Run()
})

// needEarlier returns the folder of the earlier programs, and skips where the history does not have them.
func needEarlier(t *testing.T) string {
	t.Helper()
	missing, err := earlierBinaries()
	require.NoError(t, err, "build the services of commit %s", earlier)
	if missing != "" {
		t.Skipf("NOT CHECKED: no commit %s here (a shallow clone? %s), so NO OLD BINARY WORKED BESIDE A NEW ONE", earlier, missing)
	}
	return filepath.Join(buildDir(), "earlier", "bin")
}

// upgrade is a line of two replicas of each service that begins with the earlier programs.
type upgrade struct {
	*e2e.Cluster
	old string // the folder of the earlier programs
}

func startUpgrade(t *testing.T) upgrade {
	t.Helper()
	old := needEarlier(t)
	b, err := binaries()
	require.NoError(t, err)
	c, err := e2e.NewCluster(t.Context(), e2e.ClusterConfig{Dir: t.TempDir(), Binaries: b, Replicas: 2})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, c.Close())
		if t.Failed() {
			for _, p := range c.All() {
				showLog(t, p.Log)
			}
		}
	})
	for _, p := range c.All() {
		p.Path = filepath.Join(old, filepath.Base(p.Path))
	}
	require.NoError(t, c.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, c.Stop()) })
	return upgrade{c, old}
}

// become restarts one replica of each of the services after another from a folder of programs.
func (u upgrade) become(t *testing.T, ctx context.Context, programs string, replica int, services ...string) {
	t.Helper()
	for _, service := range services {
		p := u.Services[service][replica]
		require.NoError(t, p.Stop())
		p.Path = filepath.Join(programs, service)
		require.NoError(t, p.Run(ctx), "%s from %s, replica %d", service, programs, replica)
	}
}

// TestRollingUpgrade goes from the earlier programs to the present ones under load, replica by replica, so that both
// releases work side by side on the same events and schemas; the store first, or its consumers first.
func TestRollingUpgrade(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("long: builds the programs of an earlier release; runs in make crash and make soak")
	}
	store, consumers := all.Names()[:1], all.Names()[1:]
	for name, order := range map[string][][]string{"store first": {store, consumers}, "consumers first": {consumers, store}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := startUpgrade(t)
			present := u.Config.Binaries.Dir
			underLoad(t, u.Line(), crashSeed(t), func(ctx context.Context, facts func() int) {
				for _, services := range order {
					for replica := range 2 {
						grow(t, facts, 15)
						followed(t, u.Line(), strings.Join(services, ", "))
						u.become(t, ctx, present, replica, services...)
					}
				}
				grow(t, facts, 15)
				followed(t, u.Line(), "everything new")
			})
			nothingDead(t, u.Cluster)
			if order[0][0] == "store" {
				return
			}
			// And back: the earlier consumers want a durable of their own making, and work on the present schemas.
			for _, p := range u.All()[2:] {
				require.NoError(t, p.Stop())
			}
			stream, err := dialer(t, u.Cluster, "operator")().JS.Stream(t.Context(), events.StreamOrders)
			require.NoError(t, err)
			for _, durable := range durableNames(t, stream) {
				require.NoError(t, stream.DeleteConsumer(t.Context(), durable))
			}
			b := begin(t, u.Line())
			for replica := range 2 {
				u.become(t, t.Context(), u.old, replica, consumers...)
			}
			b.trade(t, 20)
			wholeLedger(t, u.Cluster, b)
			nothingDead(t, u.Cluster)
		})
	}
}

// wholeLedger waits until each fact of b has its mail, its audit record and its points, in a line where others are too.
func wholeLedger(t *testing.T, c *e2e.Cluster, b *bench) {
	t.Helper()
	super := as(t, c, "postgres")
	total := super.texts(t, `SELECT count(*)::text FROM store.events`)
	require.Eventually(t, func() bool {
		mails, err := b.mails.Mails()
		require.NoError(t, err)
		return len(mails) >= b.truth.Count() && slices.Equal(total, super.texts(t, `SELECT count(*)::text FROM audit.entries`))
	}, deadline, 50*time.Millisecond)
	mails, err := b.mails.Mails()
	require.NoError(t, err)
	require.Len(t, mails, b.truth.Count(), "a mail came twice")
	for customer, points := range b.truth.Balances() {
		require.Eventually(t, func() bool {
			a, err := b.Account(b.ctx, customer)
			return err == nil && a.Points == points
		}, deadline, 50*time.Millisecond, customer)
	}
}

// followed waits until each consumer has done something new.
func followed(t *testing.T, line e2e.Line, when string) {
	t.Helper()
	done := func(service string) float64 {
		n, err := line.Metric(t.Context(), "pillarbox_"+service+"_consumer_events_total", `result="done"`)
		require.NoError(t, err)
		return n
	}
	for _, service := range []string{"mailer", "audit", "loyalty"} {
		before := done(service)
		require.Eventually(t, func() bool { return done(service) > before }, deadline, 20*time.Millisecond, "%s: %s stands still", when, service)
	}
}
