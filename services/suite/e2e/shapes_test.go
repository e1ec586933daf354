package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/pillarbox/pillarbox/services/suite/all"
	"github.com/pillarbox/pillarbox/services/suite/e2e"
	"github.com/pillarbox/pillarbox/services/suite/inprocess"
	"github.com/pillarbox/pillarbox/shared/logs"
)

// buildDir is where this process builds the programs, when a test needs them.
func buildDir() string {
	return filepath.Join(os.TempDir(), fmt.Sprintf("pillarbox-e2e-%d", os.Getpid()))
}

// binaries are built once, by the first test that needs processes.
var binaries = sync.OnceValues(func() (e2e.Binaries, error) {
	return e2e.Build(context.Background(), buildDir(), "failpoint")
})

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(status int) {
		_ = os.RemoveAll(buildDir()) // a folder in the temporary folder
		os.Exit(status)
	}))
}

// shape is one way to run the line. The scenarios know nothing else of it.
type shape struct {
	name  string
	start func(t *testing.T) e2e.Line
}

// eachShape runs the scenario in every shape, each on a line of its own.
func eachShape(t *testing.T, scenario func(t *testing.T, line e2e.Line)) {
	t.Helper()
	t.Parallel()
	for _, s := range []shape{
		{"suite", startSuite},
		{"separate", func(t *testing.T) e2e.Line { return startCluster(t, 1).Line() }},
		{"replicas", func(t *testing.T) e2e.Line { return startCluster(t, 3).Line() }},
	} {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			scenario(t, s.start(t))
		})
	}
}

// settings are the services' defaults, as the programs have them.
func settings(t *testing.T) all.Settings {
	t.Helper()
	var s struct {
		all.Settings `embed:""`
	}
	parser, err := kong.New(&s)
	require.NoError(t, err)
	_, err = parser.Parse(nil)
	require.NoError(t, err)
	return s.Settings
}

// runSuite starts a suite on dir and returns it with a function that stops it
// and reports what went wrong.
func runSuite(t *testing.T, dir string) (*inprocess.Suite, func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	log, err := os.OpenFile(filepath.Join(dir, "suite.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	require.NoError(t, err)
	suite, err := inprocess.Start(ctx, inprocess.Config{
		Data: dir, HTTP: "127.0.0.1:0", Admin: "127.0.0.1:0", Settings: settings(t),
	}, logs.New(log, "text", -4))
	if err != nil {
		cancel()
	}
	require.NoError(t, err)
	return suite, func() error {
		cancel()
		defer log.Close()
		return suite.Wait()
	}
}

func lineOf(suite *inprocess.Suite, dir string) e2e.Line {
	base := "http://" + suite.HTTP()
	return e2e.Line{
		Stores: []string{base}, Audit: base, Loyalty: base,
		Admins: []string{"http://" + suite.Admin()}, Pickup: filepath.Join(dir, "pickup"),
	}
}

func startSuite(t *testing.T) e2e.Line {
	dir := t.TempDir()
	suite, stop := runSuite(t, dir)
	t.Cleanup(func() {
		require.NoError(t, stop())
		if t.Failed() {
			showLog(t, filepath.Join(dir, "suite.log"))
		}
	})
	line := lineOf(suite, dir)
	var run inprocess.RunFile
	text, err := os.ReadFile(filepath.Join(dir, "run.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &run))
	line.Publisher, line.Token = run.NATSURL, run.NATSToken
	return line
}

// startCluster starts PostgreSQL, NATS and replicas of every service as
// processes; they are stopped as an operator would at the end of the test.
func startCluster(t *testing.T, replicas int, env ...string) *e2e.Cluster {
	t.Helper()
	return startClusterOf(t, e2e.ClusterConfig{Replicas: replicas, Env: env})
}

// startClusterOf is startCluster with everything that can be said of a cluster but its folder and programs.
func startClusterOf(t *testing.T, config e2e.ClusterConfig) *e2e.Cluster {
	t.Helper()
	b, err := binaries()
	require.NoError(t, err)
	dir := t.TempDir()
	config.Dir, config.Binaries = dir, b
	cluster, err := e2e.NewCluster(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, cluster.Close())
		if t.Failed() {
			logs, err := filepath.Glob(filepath.Join(dir, "*.log"))
			require.NoError(t, err)
			for _, path := range logs {
				showLog(t, path)
			}
		}
	})
	require.NoError(t, cluster.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, cluster.Stop()) })
	return cluster
}

// showLog puts the end of a log into the test's output.
func showLog(t *testing.T, path string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Logf("%s: %v", path, err)
		return
	}
	t.Logf("%s:\n%s", path, text[max(0, len(text)-8000):])
}
