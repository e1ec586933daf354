package doctor_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/pillarbox/pillarbox/services/suite/all"
	"github.com/pillarbox/pillarbox/services/suite/doctor"
	"github.com/pillarbox/pillarbox/services/suite/inprocess"
	"github.com/pillarbox/pillarbox/shared/database"
	rules "github.com/pillarbox/pillarbox/shared/doctor"
	"github.com/pillarbox/pillarbox/shared/logs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// answer is what the command printed and its exit status.
type answer struct {
	status int
	text   string
	codes  []rules.Code
	kinds  map[string]int
}

// ask runs the command as its program would.
func ask(t *testing.T, args ...string) answer {
	t.Helper()
	var cli struct {
		Doctor doctor.Command `cmd:""`
	}
	parser, err := kong.New(&cli, kong.Vars{"services": strings.Join(all.Names(), ",")})
	require.NoError(t, err)
	var out bytes.Buffer
	cli.Doctor.Out = &out
	parsed, err := parser.Parse(append([]string{"doctor"}, args...))
	require.NoError(t, err)
	a := answer{kinds: map[string]int{}}
	if err := parsed.Run(); err != nil {
		var status interface{ ExitStatus() int }
		require.ErrorAs(t, err, &status)
		a.status = status.ExitStatus()
	}
	a.text = out.String()
	if slices.Contains(args, "--json") {
		for _, line := range strings.Split(strings.TrimSpace(a.text), "\n") {
			var one struct {
				Kind string     `json:"kind"`
				Code rules.Code `json:"code"`
			}
			require.NoError(t, json.Unmarshal([]byte(line), &one), line)
			a.kinds[one.Kind]++
			if one.Code != "" {
				a.codes = append(a.codes, one.Code)
			}
		}
	}
	return a
}

// running starts a suite and returns what stops it.
func running(t *testing.T, dir string) func() {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	suite, err := inprocess.Start(ctx, inprocess.Config{Data: dir, HTTP: "127.0.0.1:0", Admin: "127.0.0.1:0"}, logs.Discard())
	require.NoError(t, err)
	stopped := false
	stop := func() {
		if !stopped {
			stopped = true
			cancel()
			require.NoError(t, suite.Wait())
		}
	}
	t.Cleanup(stop)
	return stop
}

// folder is a data folder on a file system that keeps what it is told, or the test is skipped.
func folder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	magic, err := rules.FileSystem(dir)
	require.NoError(t, err)
	if name, _ := rules.Unfit(magic); name != "" {
		t.Skipf("NOT RUN: temporary files are on %s", name)
	}
	require.NoError(t, os.Chmod(dir, 0o700))
	return dir
}

func TestASuiteInOrder(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	stop := running(t, dir)
	a := ask(t, "--data", dir)
	require.Zero(t, a.status, a.text)
	require.Equal(t, 10, strings.Count(a.text, "\n"), a.text)
	require.Equal(t, 9, strings.Count(a.text, " ok\n"))
	require.Contains(t, a.text, "not used here")
	stop()
	before, err := filepath.Glob(filepath.Join(dir, "*"))
	require.NoError(t, err)
	a = ask(t, "--data", dir, "--json")
	require.Zero(t, a.status, a.text)
	require.Equal(t, map[string]int{"check": 10}, a.kinds)
	after, err := filepath.Glob(filepath.Join(dir, "*"))
	require.NoError(t, err)
	require.Equal(t, before, after, "a look leaves nothing behind")
	running(t, dir) // and the folder is free
}

// TestASuiteWithOneMistake makes one mistake at a time and wants its code, running and stopped.
func TestASuiteWithOneMistake(t *testing.T) {
	t.Parallel()
	sql := func(t *testing.T, dir, service, statement string) {
		db, err := database.Open("sqlite:"+filepath.Join(dir, service+".db"), database.Options{})
		require.NoError(t, err)
		require.NoError(t, db.Tx(t.Context(), func(ctx context.Context, tx *database.Tx) error {
			_, err := tx.ExecContext(ctx, statement)
			return err
		}))
		require.NoError(t, db.Close())
	}
	for name, c := range map[string]struct {
		spoil   func(t *testing.T, dir string)
		want    rules.Code
		stopped bool // cannot be done to a running suite
	}{
		"folder": {spoil: func(t *testing.T, dir string) { require.NoError(t, os.Chmod(dir, 0o777)) }, want: rules.OpenToAll},
		"file": {spoil: func(t *testing.T, dir string) { require.NoError(t, os.Chmod(filepath.Join(dir, "audit.db"), 0o606)) },
			want: rules.OpenToAll},
		"pickup": {spoil: func(t *testing.T, dir string) { require.NoError(t, os.Chmod(filepath.Join(dir, "pickup"), 0o777)) },
			want: rules.FolderOpen},
		"marker": {spoil: func(t *testing.T, dir string) {
			require.NoError(t, os.WriteFile(filepath.Join(dir, "pickup", ".pillarbox-pickup"), []byte("another\n"), 0o600))
		}, want: rules.FolderUnmarked},
		"link": {spoil: func(t *testing.T, dir string) {
			require.NoError(t, os.Link(filepath.Join(dir, "store.db"), filepath.Join(dir, "store.copy")))
		}, want: rules.SQLiteLinks},
		"ahead": {spoil: func(t *testing.T, dir string) {
			sql(t, dir, "store", `INSERT INTO goose_db_version (version_id, is_applied) VALUES (99, TRUE)`)
		}, want: rules.SchemaAhead, stopped: true},
		"undone": {spoil: func(t *testing.T, dir string) {
			sql(t, dir, "audit", `INSERT INTO goose_db_version (version_id, is_applied) VALUES (1, FALSE)`)
		}, want: rules.SchemaBroken, stopped: true},
		"stream": {spoil: func(t *testing.T, dir string) {
			a, err := inprocess.Attach(t.Context(), dir, logs.Discard())
			require.NoError(t, err)
			stream, err := a.Conn.JS.Stream(t.Context(), "orders")
			require.NoError(t, err)
			config := stream.CachedInfo().Config
			config.MaxMsgsPerSubject = 7
			_, err = a.Conn.JS.UpdateStream(t.Context(), config)
			require.NoError(t, err)
			require.NoError(t, a.Close())
		}, want: rules.StreamPerSubject},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := folder(t)
			stop := running(t, dir)
			if !c.stopped {
				c.spoil(t, dir)
				a := ask(t, "--data", dir, "--json")
				require.Equal(t, []rules.Code{c.want}, a.codes, a.text)
				require.Equal(t, 1, a.status)
			}
			stop()
			if c.stopped {
				c.spoil(t, dir)
			}
			a := ask(t, "--data", dir, "--json")
			require.Equal(t, []rules.Code{c.want}, a.codes, a.text)
			require.Equal(t, 1, a.status)
			_, err := inprocess.Start(t.Context(), inprocess.Config{Data: dir, HTTP: "127.0.0.1:0", Admin: "127.0.0.1:0", Strict: true}, logs.Discard())
			switch {
			case rules.RuleOf(c.want).Passing || c.want == rules.SQLiteLinks: // which the suite cannot look for within itself
				require.NotErrorIs(t, err, inprocess.ErrInUse)
			default:
				require.ErrorContains(t, err, "PILLARBOX_STRICT")
				require.ErrorContains(t, err, string(c.want))
			}
		})
	}
}

func TestAStrictSuiteInOrderStarts(t *testing.T) {
	t.Parallel()
	dir := folder(t)
	for range 2 { // on nothing, and on what the first left
		ctx, cancel := context.WithCancel(t.Context())
		suite, err := inprocess.Start(ctx, inprocess.Config{Data: dir, HTTP: "127.0.0.1:0", Admin: "127.0.0.1:0", Strict: true}, logs.Discard())
		require.NoError(t, err)
		cancel()
		require.NoError(t, suite.Wait())
	}
}

func TestWhatCannotBeCheckedIsStatus2(t *testing.T) {
	t.Parallel()
	require.Equal(t, 2, ask(t, "--data", filepath.Join(t.TempDir(), "none")).status)
	a := ask(t, "--database-url", "postgres://nobody:hunter2@127.0.0.1:1/none", "--nats-url", "nats://127.0.0.1:1", "--service", "audit", "--json")
	require.Equal(t, 2, a.status)
	require.Empty(t, a.codes)
	require.Positive(t, a.kinds["unseen"])
	require.NotContains(t, a.text, "hunter2", "passwords stay out of the report")
	a = ask(t, "--database-url", "postgres://127.0.0.1:1/none", "--nats-url", "nats://127.0.0.1:1", "--service", "mailer")
	require.Equal(t, 2, a.status)
	require.Regexp(t, `(?m)^pickup and staging +could not be checked$`, a.text)
}

// TestSlowHandlers asks a service that says so.
func TestSlowHandlers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		below, above int
		found        bool
	}{{1000, 0, false}, {1000, 9, false}, {900, 100, true}, {0, 99, false}} {
		metrics := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			const name = `pillarbox_audit_consumer_group_seconds_bucket{consumer="audit",le=`
			fmt.Fprintf(w, "# HELP x\n%s\"1.024\"} %d\n%s\"32.768\"} %d\n%s\"+Inf\"} %d\n", name, c.below, name, c.below+c.above, name, c.below+c.above)
		}))
		took, groups, err := doctor.GroupTime(t.Context(), strings.TrimPrefix(metrics.URL, "http://"), "audit")
		require.NoError(t, err)
		require.EqualValues(t, c.below+c.above, groups)
		require.Equal(t, c.found, groups >= 100 && took.Seconds() > 5, "%v: %s", c, took)
		metrics.Close()
	}
	_, _, err := doctor.GroupTime(t.Context(), "127.0.0.1:1", "audit")
	require.Error(t, err)
}
