package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/suite/e2e"
	"github.com/pillarbox/pillarbox/services/suite/inprocess"
	"github.com/pillarbox/pillarbox/shared/events"
)

// always lets every fsync fail.
const always = "1+"

// needStrace skips where strace cannot be used; in CI that is a failure.
func needStrace(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("strace")
	if err != nil {
		require.Empty(t, os.Getenv("CI"), "strace is missing")
		t.Skip("NOT CHECKED: strace is missing, so no fsync was made to fail")
	}
	return path
}

// badDisk is a strace that lets fsyncs of a process fail.
type badDisk struct {
	t      *testing.T
	cmd    *exec.Cmd
	out    string
	stderr *words
	ended  chan struct{}
}

// failFsyncs attaches to p: from now on those fsyncs fail with EIO that when names
// ("3+7": of each thread the third and every seventh after it), of the given
// files only if there are any.
func failFsyncs(t *testing.T, p *e2e.Process, when string, files ...string) *badDisk {
	t.Helper()
	d := &badDisk{t: t, out: filepath.Join(t.TempDir(), "strace"), stderr: &words{}, ended: make(chan struct{})}
	args := []string{"-f", "-p", fmt.Sprint(p.PID()), "-o", d.out, "-e", "trace=fsync,fdatasync", "-e", "inject=fsync,fdatasync:error=EIO:when=" + when}
	for _, file := range files {
		args = append(args, "-P", file)
	}
	d.cmd = exec.Command(needStrace(t), args...)
	d.cmd.Stderr = d.stderr
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(t, d.cmd.Start())
	go func() {
		defer close(d.ended)
		_ = d.cmd.Wait() // it ends by a signal
	}()
	t.Cleanup(d.heal)
	require.Eventually(t, func() bool {
		select {
		case <-d.ended:
			return true
		default:
			return strings.Contains(d.stderr.String(), " attached")
		}
	}, deadline, 5*time.Millisecond)
	if text := d.stderr.String(); !strings.Contains(text, " attached") {
		require.Empty(t, os.Getenv("CI"), "strace cannot attach: %s", text)
		require.Contains(t, text, "not permitted")
		t.Skip("NOT CHECKED: strace may not attach here, so no fsync was made to fail: ", text)
	}
	return d
}

// injected is how many fsyncs have failed, as strace itself tells.
func (d *badDisk) injected() int {
	text, err := os.ReadFile(d.out)
	require.NoError(d.t, err)
	return bytes.Count(text, []byte("(INJECTED)"))
}

// heal detaches; the process goes on.
func (d *badDisk) heal() {
	_ = d.cmd.Process.Signal(syscall.SIGINT) // fails when it has ended
	<-d.ended
}

// words is what a program says, to be read while it runs.
type words struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (w *words) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(p)
}

func (w *words) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}

// acknowledged is how many messages a service has acknowledged: what was
// delivered to it, less what it still owes.
func acknowledged(t *testing.T, line e2e.Line, service string) int {
	t.Helper()
	conn, err := nats.Connect(line.Publisher, nats.Token(line.Token))
	require.NoError(t, err)
	defer conn.Close()
	js, err := jetstream.New(conn)
	require.NoError(t, err)
	durable, err := js.Consumer(t.Context(), events.StreamOrders, service+"-1")
	require.NoError(t, err)
	info := durable.CachedInfo()
	return int(info.Delivered.Stream) - info.NumAckPending
}

// credentials are how to reach the broker within a running suite.
func credentials(t *testing.T, suite *e2e.SuiteProcess) e2e.Line {
	t.Helper()
	var run inprocess.RunFile
	text, err := os.ReadFile(filepath.Join(suite.Dir, "run.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &run))
	line := suite.Line()
	line.Publisher, line.Token = run.NATSURL, run.NATSToken
	return line
}

// logged waits until p has logged all the words since its log had from bytes.
func logged(t *testing.T, p *e2e.Process, from int, words ...string) {
	t.Helper()
	for _, word := range words {
		require.Eventually(t, func() bool { return strings.Contains(p.LogSince(from), word) },
			deadline, 10*time.Millisecond, "%s does not say %q", p.Name, word)
	}
}

// isReady waits until everything of the line is ready, and returns after how long.
func isReady(t *testing.T, line e2e.Line) time.Duration {
	t.Helper()
	start := time.Now()
	var failing map[string]string
	require.Eventually(t, func() bool {
		failing = line.Failing(t.Context())
		return len(failing) == 0
	}, deadline, 10*time.Millisecond, "%v", &failing)
	return time.Since(start).Round(time.Millisecond)
}

// TestNo201FollowsAFailedFsync lets every fsync of the store's database fail: no
// order is accepted, and afterwards the same requests go through, each once.
func TestNo201FollowsAFailedFsync(t *testing.T) {
	t.Parallel()
	suite := startSuiteProcess(t)
	b := begin(t, suite.Line())
	place := func(n int) error {
		_, err := b.client.PlaceWithKey(b.ctx, fmt.Sprint("order-", n), e2e.Body("ada@example.com", "EUR", 1, "1.00"))
		return err
	}
	require.NoError(t, place(0))
	from := len(suite.LogSince(0))
	disk := failFsyncs(t, suite.Process, always, filepath.Join(suite.Dir, "store.db-wal"), filepath.Join(suite.Dir, "store.db"))
	b.client.GiveUp = 500 * time.Millisecond
	for n := range 6 {
		failed := disk.injected()
		require.Error(t, place(n+1))
		require.Greater(t, disk.injected(), failed, "the request failed for another reason")
	}
	require.Equal(t, 1, b.truth.Count())
	logged(t, suite.Process, from, "intake transaction failed", "disk I/O error")
	disk.heal()
	healed := time.Now()
	b.client.GiveUp = deadline
	for n := range 6 {
		require.NoError(t, place(n+1))
	}
	t.Logf("%d fsyncs failed; orders accepted %s after", disk.injected(), time.Since(healed).Round(time.Millisecond))
	b.conserved(t)
}

// TestNoAckFollowsAFailedFsync lets every fsync of one consumer's files fail: it
// pauses, says why, and acknowledges nothing; the others go on; and afterwards it
// goes on by itself.
func TestNoAckFollowsAFailedFsync(t *testing.T) {
	t.Parallel()
	needStrace(t)
	for name, start := range map[string]func(t *testing.T) (e2e.Line, []ailing){
		"suite":    ailingSuite,
		"separate": ailingMailer,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			line, all := start(t)
			underLoad(t, line, crashSeed(t), func(_ context.Context, facts func() int) {
				for _, a := range all {
					grow(t, facts, 20)
					a.acksNothing(t, line, facts)
				}
			})
		})
	}
}

// ailing is a consumer whose disk is about to fail.
type ailing struct {
	name    string
	service string
	process *e2e.Process
	files   []string
	says    string
}

func ailingSuite(t *testing.T) (e2e.Line, []ailing) {
	suite := startSuiteProcess(t)
	var all []ailing
	for _, service := range []string{"mailer", "audit", "loyalty"} {
		path := filepath.Join(suite.Dir, service+".db")
		all = append(all, ailing{service + "'s database", service, suite.Process, []string{path, path + "-wal"}, "disk I/O error"})
	}
	return credentials(t, suite), append(all, pickupFolders(suite.Process, suite.Line().Pickup))
}

func ailingMailer(t *testing.T) (e2e.Line, []ailing) {
	cluster := startCluster(t, 1)
	mailer := cluster.Services["mailer"][0]
	return cluster.Line(), []ailing{
		{"staged files and folders", "mailer", mailer, nil, "input/output error"},
		pickupFolders(mailer, cluster.Pickup()),
	}
}

// pickupFolders is the half failure: mails appear, but nobody can promise that they stay.
func pickupFolders(p *e2e.Process, pickup string) ailing {
	return ailing{"pickup folders", "mailer", p, []string{pickup, filepath.Join(pickup, ".staging")}, "input/output error"}
}

func (a ailing) acksNothing(t *testing.T, line e2e.Line, facts func() int) {
	t.Helper()
	from := len(a.process.LogSince(0))
	disk := failFsyncs(t, a.process, always, a.files...)
	logged(t, a.process, from, "consumer paused", a.says)
	require.Eventually(t, func() bool { return strings.Contains(line.Failing(t.Context())[a.service], a.says) },
		deadline, 10*time.Millisecond, "%s is still ready, or does not say why", a.service)
	grow(t, facts, 5) // what was made durable before the failure has been acknowledged
	before := acknowledged(t, line, a.service)
	grow(t, facts, 20)
	require.Equal(t, before, acknowledged(t, line, a.service), "%s: acknowledged without a good fsync", a.name)
	count := disk.injected()
	require.Positive(t, count)
	disk.heal()
	t.Logf("%s: %d fsyncs failed; ready %s after", a.name, count, isReady(t, line))
	logged(t, a.process, from, "consumer goes on")
}

// TestSomeFsyncsFail lets one in so many fsyncs fail, of all the databases in the
// suite and of all that a separate mailer writes. Whoever meets the failure says
// so and recovers; nothing is lost and nothing comes twice.
func TestSomeFsyncsFail(t *testing.T) {
	t.Parallel()
	needStrace(t)
	t.Run("suite", func(t *testing.T) {
		t.Parallel()
		suite := startSuiteProcess(t)
		var files []string
		for _, service := range []string{"store", "mailer", "audit", "loyalty"} {
			files = append(files, filepath.Join(suite.Dir, service+".db-wal"))
		}
		someFail(t, suite.Line(), suite.Process, "disk I/O error", files...)
	})
	t.Run("mailer", func(t *testing.T) {
		t.Parallel()
		cluster := startCluster(t, 1)
		someFail(t, cluster.Line(), cluster.Services["mailer"][0], "input/output error")
	})
}

func someFail(t *testing.T, line e2e.Line, p *e2e.Process, says string, files ...string) {
	t.Helper()
	underLoad(t, line, crashSeed(t), func(_ context.Context, facts func() int) {
		// Per thread of the program: the first one, then a few, then each second one.
		for _, when := range []string{"1", "2+9", "3+4", "1+2"} {
			from := len(p.LogSince(0))
			disk := failFsyncs(t, p, when, files...)
			grow(t, facts, 15)
			require.Eventually(t, func() bool { return disk.injected() > 0 }, deadline, 10*time.Millisecond)
			logged(t, p, from, says)
			count := disk.injected()
			disk.heal()
			t.Logf("when=%s: %d fsyncs failed; ready %s after", when, count, isReady(t, line))
		}
		grow(t, facts, 15)
	})
}

// TestBrokerFsyncFailsInTheSuite fails what is between the two: the stream takes
// nothing more until the broker is started anew, which the suite does by itself.
func TestBrokerFsyncFailsInTheSuite(t *testing.T) {
	t.Parallel()
	suite := startSuiteProcess(t)
	files := streamBlocks(filepath.Join(suite.Dir, "nats"))
	underLoad(t, suite.Line(), crashSeed(t), func(ctx context.Context, facts func() int) {
		cases := []string{"3", always}
		if testing.Short() {
			cases = cases[:1]
		}
		for _, when := range cases {
			grow(t, facts, 20)
			from := len(suite.LogSince(0))
			disk := failFsyncs(t, suite.Process, when, files...)
			failed := time.Now()
			logged(t, suite.Process, from, "the broker's store does not work any more", "input/output error")
			noticed := time.Since(failed).Round(time.Millisecond)
			grow(t, facts, 10) // orders are accepted all the while
			count := disk.injected()
			require.Positive(t, count)
			disk.heal()
			healed := time.Now()
			logged(t, suite.Process, from, "the broker has started anew", "relay goes on")
			require.True(t, suite.Alive())
			t.Logf("when=%s: %d fsyncs failed, noticed after %s; the relay goes on %s after", when, count, noticed, time.Since(healed).Round(time.Millisecond))
		}
		grow(t, facts, 20)
	})
}

// streamBlocks are the files of the stream in a broker's store: each start begins a new one.
func streamBlocks(store string) []string {
	var files []string
	for n := range 20 {
		files = append(files, filepath.Join(store, "jetstream", "$G", "streams", events.StreamOrders, "msgs", fmt.Sprint(n+1, ".blk")))
	}
	return files
}

// TestBrokerFsyncFails is the same for a NATS server of its own: orders are accepted
// all the while, the relay says that it waits, and a new start of the server is
// all that is needed.
func TestBrokerFsyncFails(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t, 1)
	store := cluster.Services["store"][0]
	underLoad(t, cluster.Line(), crashSeed(t), func(ctx context.Context, facts func() int) {
		grow(t, facts, 20)
		from := len(store.LogSince(0))
		disk := failFsyncs(t, cluster.NATS, "3", streamBlocks(cluster.NATSStore())...)
		logged(t, store, from, "relay waits and tries again")
		require.Positive(t, disk.injected())
		disk.heal()
		grow(t, facts, 20)
		require.NotContains(t, store.LogSince(from), "relay goes on")
		require.NoError(t, cluster.NATS.Kill())
		require.NoError(t, cluster.NATS.Run(ctx))
		restarted := time.Now()
		logged(t, store, from, "relay goes on")
		t.Logf("the relay goes on %s after the broker's new start", time.Since(restarted).Round(time.Millisecond))
		grow(t, facts, 20)
	})
}
