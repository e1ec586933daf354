package e2e_test

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/suite/e2e"
	"github.com/pillarbox/pillarbox/shared/database"
)

// withinHandOver is how soon what a stopped replica held is with another.
const withinHandOver = 2 * time.Second

// TestAStoppedReplicaGivesBackWhatItHolds stops a mailer that has messages in hand: another one has handled all of
// them long before an ack deadline, nothing is dead, and no mail comes twice.
func TestAStoppedReplicaGivesBackWhatItHolds(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 2, "PILLARBOX_MAILER_BATCH=10") // so that what it holds is more than what it works on
	one, other := c.Services["mailer"][0], c.Services["mailer"][1]
	b := begin(t, c.Line())
	var worst time.Duration
	for range 3 {
		require.NoError(t, one.Stop())
		require.NoError(t, other.Stop())
		b.trade(t, 40)
		freezeAt(t, t.Context(), one, "mailer.before_commit:1:pause")
		require.NoError(t, other.Run(t.Context()))
		held := streamState(t, c.Line()).held
		require.Positive(t, held)
		stopped := time.Now()
		require.NoError(t, one.Signal(syscall.SIGTERM))
		require.NoError(t, one.Thaw())
		<-one.Ended()
		ended := time.Since(stopped)
		require.Eventually(t, func() bool {
			mails, err := b.mails.Mails()
			require.NoError(t, err)
			return len(mails) == b.truth.Count()
		}, deadline, 5*time.Millisecond)
		took := time.Since(stopped)
		worst = max(worst, took)
		t.Logf("%d messages held; ended %s and all handled %s after SIGTERM", held, ended.Round(time.Millisecond), took.Round(time.Millisecond))
	}
	require.Less(t, worst, 2*withinHandOver, "messages were left to the ack deadline of %s", ackDeadline)
	b.conserved(t)
	nothingDead(t, c)
}

func nothingDead(t *testing.T, c *e2e.Cluster) {
	t.Helper()
	super := as(t, c, "postgres")
	for _, service := range []string{"mailer", "audit", "loyalty"} {
		require.Equal(t, []string{"0"}, super.texts(t, "SELECT count(*)::text FROM "+service+".dead_letters"), service)
	}
}

// TestAHangingServiceHoldsUpNoOther has the mailer hang in the middle of its work: the others handle each event as
// soon as before.
func TestAHangingServiceHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	last := longer(4*time.Second, 3*time.Minute)
	t.Run("separate", func(t *testing.T) {
		t.Parallel()
		c := startCluster(t, 1)
		mailer := c.Services["mailer"][0]
		others := c.Line()
		others.Admins = slices.Delete(slices.Clone(others.Admins), 1, 2) // a frozen process answers nothing
		hangs(t, c.Line(), others, last, func() {
			require.NoError(t, mailer.Stop())
			freezeAt(t, t.Context(), mailer, "mailer.before_commit:1:pause")
		}, func() { require.NoError(t, mailer.Thaw()) })
	})
	t.Run("suite", func(t *testing.T) {
		t.Parallel()
		suite := startSuiteProcess(t)
		db := openDB(t, suite.Dir, "mailer")
		done := make(chan error, 1)
		release := make(chan struct{})
		// Not for minutes: a transaction has a time-out.
		hangs(t, suite.Line(), suite.Line(), min(last, 10*time.Second), func() {
			locked := make(chan struct{})
			go func() {
				done <- db.Tx(context.WithoutCancel(t.Context()), func(ctx context.Context, tx *database.Tx) error {
					// A write, so that nobody else may write.
					if _, err := tx.ExecContext(ctx, `DELETE FROM dead_letters WHERE id = 'nobody'`); err != nil {
						return err
					}
					close(locked)
					<-release
					return nil
				})
			}()
			<-locked
		}, func() {
			close(release)
			if err := <-done; err != nil {
				require.ErrorIs(t, err, context.DeadlineExceeded) // the machine was slow: it was released by its time-out
			}
		})
	})
}

// hangs is the load while the mailer hangs.
func hangs(t *testing.T, line, others e2e.Line, last time.Duration, hang, release func()) {
	t.Helper()
	underLoad(t, line, crashSeed(t), func(ctx context.Context, facts func() int) {
		grow(t, facts, 20)
		free := agesOf(t, others, "audit")
		hang()
		held := agesOf(t, others, "audit")
		lasts(t, last)
		grow(t, facts, 20)
		during := agesOf(t, others, "audit").since(held)
		require.Greater(t, during.count, 10.0, "audit stands still")
		require.Zero(t, during.slow(), "events reached audit late: %v", during)
		t.Logf("age of events at audit before %s, while the mailer hangs for %s %s", free, last, during)
		release()
	})
}

// ages are how old events were when they took effect.
type ages struct{ count, sum, within5s float64 }

func agesOf(t *testing.T, line e2e.Line, service string) ages {
	t.Helper()
	seen, err := line.Scrape(t.Context()) // one look: the three belong together
	require.NoError(t, err)
	name := "pillarbox_" + service + "_consumer_event_age_seconds"
	return ages{count: seen.Sum(name + "_count"), sum: seen.Sum(name + "_sum"), within5s: seen.Sum(name+"_bucket", `le="5.12"`)}
}

func (a ages) since(b ages) ages {
	return ages{a.count - b.count, a.sum - b.sum, a.within5s - b.within5s}
}

func (a ages) slow() float64 { return a.count - a.within5s }

func (a ages) mean() time.Duration {
	return time.Duration(a.sum / max(a.count, 1) * float64(time.Second))
}

func (a ages) String() string {
	return fmt.Sprintf("%s (mean of %.0f)", a.mean().Round(time.Millisecond), a.count)
}

// TestIdleTransaction leaves a transaction open in PostgreSQL, which keeps dead rows from being removed, while orders
// come: events are published as soon as before.
func TestIdleTransaction(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("NOT CHECKED in short mode: a transaction that stays open under load")
	}
	c := startCluster(t, 1)
	last := min(10*time.Minute, time.Duration(crashRounds(t, 10))*3*time.Second)
	underLoad(t, c.Line(), crashSeed(t), func(ctx context.Context, facts func() int) {
		start := agesOf(t, c.Line(), "audit")
		lasts(t, min(last, time.Minute)/2)
		before := agesOf(t, c.Line(), "audit").since(start)
		end := leaveOpen(t, c)
		start = agesOf(t, c.Line(), "audit")
		lasts(t, last)
		during := agesOf(t, c.Line(), "audit").since(start)
		t.Logf("from order to audit %s; with a transaction open for %s %s", before, last, during)
		end()
		require.Zero(t, during.slow())
		require.Less(t, during.mean(), 2*before.mean()+100*time.Millisecond)
	})
}

// leaveOpen begins a transaction that has seen everything and writes something, and returns what ends it.
func leaveOpen(t *testing.T, c *e2e.Cluster) (end func()) {
	t.Helper()
	session := exec.CommandContext(t.Context(), "psql", "-qAt", "-v", "ON_ERROR_STOP=1", "-d", c.DatabaseURL("postgres"))
	in, err := session.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, session.Start())
	_, err = io.WriteString(in, "BEGIN ISOLATION LEVEL REPEATABLE READ; CREATE TABLE public.idle (id int); SELECT count(*) FROM store.outbox;\n")
	require.NoError(t, err)
	super := as(t, c, "postgres")
	idle := `SELECT 'yes' FROM pg_stat_activity WHERE state = 'idle in transaction' AND backend_xid IS NOT NULL`
	require.Eventually(t, func() bool { return len(super.texts(t, idle)) > 0 }, deadline, 20*time.Millisecond)
	return func() {
		require.NotEmpty(t, super.texts(t, idle), "the transaction has ended by itself")
		require.NoError(t, in.Close())
		require.NoError(t, session.Wait())
	}
}
