//go:build linux

package drill_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/pillarbox/pillarbox/services/suite/drill"
	"github.com/pillarbox/pillarbox/services/suite/e2e"
)

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "pillarbox-drill-test-")
	if err != nil {
		panic(err)
	}
	plain = sync.OnceValues(func() (string, error) { return build(dir, "") })
	goleak.VerifyTestMain(m, goleak.Cleanup(func(status int) {
		_ = os.RemoveAll(dir) // it holds nothing of worth
		os.Exit(status)
	}))
}

// plain is the suite without a seeded fault, built once; TestMain sets it.
var plain func() (string, error)

// build builds the suite, with a seeded fault when tag is not empty.
func build(dir, tag string) (program string, err error) {
	program = filepath.Join(dir, "suite"+tag)
	out, err := exec.Command("go", "build", "-tags", tag, "-o", program, "github.com/pillarbox/pillarbox/services/suite").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build: %w: %s", err, out)
	}
	return program, nil
}

// run drills beside a data folder with a file in it, which must be all that is there afterwards.
func run(t *testing.T, c drill.Command) (drill.Report, error) {
	t.Helper()
	dir := t.TempDir()
	c.Data = filepath.Join(dir, "data")
	require.NoError(t, os.Mkdir(c.Data, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(c.Data, "store.db"), []byte("mine"), 0o600))
	var out bytes.Buffer
	c.Duration, c.JSON, c.Out = time.Minute, true, &out
	require.NoError(t, c.Validate())
	err := c.RunContext(t.Context())
	var report drill.Report
	if out.Len() > 0 {
		require.NoError(t, json.Unmarshal(out.Bytes(), &report), out.String())
	}
	requireUntouched(t, dir)
	t.Log(out.String(), err)
	return report, err
}

func requireUntouched(t *testing.T, dir string) {
	t.Helper()
	require.Equal(t, []string{"data"}, names(t, dir))
	require.Equal(t, []string{"store.db"}, names(t, filepath.Join(dir, "data")))
	text, err := os.ReadFile(filepath.Join(dir, "data", "store.db"))
	require.NoError(t, err)
	require.Equal(t, "mine", string(text))
}

func names(t *testing.T, dir string) (all []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

func exitStatus(err error) int {
	var status interface{ ExitStatus() int }
	switch {
	case err == nil:
		return 0
	case errors.As(err, &status):
		return status.ExitStatus()
	}
	return -1
}

func TestDrillFindsNothing(t *testing.T) {
	t.Parallel()
	program, err := plain()
	require.NoError(t, err)
	r, err := run(t, drill.Command{
		Faults: 5, Seed: 7, Rate: 30, Freeze: 300 * time.Millisecond, Settle: 30 * time.Second, Program: program,
		Settings: []string{"--mailer-mode=single", "--mailer-transport=smtp://192.0.2.1:25"},
	})
	require.NoError(t, err)
	require.True(t, r.Clean)
	require.EqualValues(t, 7, r.Seed)
	require.Positive(t, r.Orders)
	require.Greater(t, r.Facts, r.Orders)
	require.Equal(t, 5, r.Kills+r.Freezes+r.Stops)
	require.Zero(t, r.Ended)
	require.Empty(t, r.Findings)
	require.Positive(t, r.MedianRecovery)
	require.GreaterOrEqual(t, r.WorstRecovery, r.MedianRecovery)
}

// TestSeededFaultsAreCaught builds the programs with a fault each. What crashes of a process show, the drill finds.
// The others are found by the tests that have what a drill has not: a disk that loses what was not fsynced, and a
// second replica.
func TestSeededFaultsAreCaught(t *testing.T) {
	t.Parallel()
	t.Run("acknowledged before the commit", func(t *testing.T) {
		t.Parallel()
		requireCaught(t, "fault_ack")
	})
	t.Run("recognised before the effect", func(t *testing.T) {
		t.Parallel()
		if testing.Short() {
			t.Skip("takes as long as the first")
		}
		requireCaught(t, "fault_dedup")
	})
	for _, c := range []struct{ name, tag, pkg, test, says string }{
		{
			"folder not fsynced", "fault_folder", "./services/mailer/internal/delivery",
			"TestPowerLossAtEachStepLeavesOneMailPerEventInOrder/sqlite", "power lost before step",
		},
		{
			"term not checked", "fault_term", "./shared/consumer",
			"TestALeaderOfThePastIsRefused/sqlite", "what was prepared under the past term",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if testing.Short() && c.tag != "fault_folder" {
				t.Skip("builds one more set of programs")
			}
			for tag, ok := range map[string]bool{"": true, c.tag: false} {
				cmd := exec.CommandContext(t.Context(), "go", "test", "-short", "-tags", tag, "-run", "^"+strings.ReplaceAll(c.test, "/", "$/^")+"$", "-v", c.pkg)
				cmd.Dir = "../../.."
				out, err := cmd.CombinedOutput()
				if ok {
					require.NoError(t, err, string(out))
					require.Contains(t, string(out), "--- PASS: "+c.test)
					continue
				}
				require.Error(t, err)
				require.Contains(t, string(out), "--- FAIL: "+c.test)
				require.Contains(t, string(out), c.says)
			}
		})
	}
}

func requireCaught(t *testing.T, tag string) {
	t.Helper()
	program, err := build(t.TempDir(), tag)
	require.NoError(t, err)
	r, err := run(t, drill.Command{
		Faults: 6, Seed: 7, Rate: 40, Freeze: 200 * time.Millisecond, Settle: 4 * time.Second, Program: program,
	})
	require.Equal(t, 1, exitStatus(err))
	require.False(t, r.Clean)
	require.Positive(t, r.Lost)
	require.Equal(t, drill.Lost, r.Findings[0].Problem)
	require.NotEmpty(t, r.Findings[0].Order)
	require.Positive(t, r.Findings[0].Version)
}

// TestInterrupted: Ctrl-C leaves neither the folder nor the suite.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	program, err := plain()
	require.NoError(t, err)
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), program, "drill", "--data", filepath.Join(dir, "data"), "--duration", "1h")
	printed, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	line, err := bufio.NewReader(printed).ReadString('\n')
	require.NoError(t, err)
	require.Regexp(t, `^seed \d+\n$`, line)
	var suite int
	require.Eventually(t, func() bool { // the suite runs
		found, err := filepath.Glob(filepath.Join(dir, "pillarbox-drill-*", "data", "suite.lock"))
		require.NoError(t, err)
		if len(found) != 1 {
			return false
		}
		text, err := os.ReadFile(found[0])
		require.NoError(t, err)
		suite, err = strconv.Atoi(string(text))
		return err == nil
	}, 30*time.Second, 5*time.Millisecond)
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	var exit *exec.ExitError
	require.ErrorAs(t, cmd.Wait(), &exit)
	require.Equal(t, 2, exit.ExitCode())
	require.Empty(t, names(t, dir))
	require.ErrorIs(t, syscall.Kill(suite, 0), syscall.ESRCH)
}

func TestCannotBeDone(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]drill.Command{
		"PILLARBOX_STORE_INTAKE":   {Settings: []string{"--store-intake=async"}},
		"PILLARBOX_FANOUT_ROUTE":   {Settings: []string{"--store-fanout=sequential", "--store-fanout-route=mailer,loyalty"}},
		"--data":                   {Settings: []string{"--data=/tmp"}},
		"PILLARBOX_MAILER_WORKERS": {Settings: []string{"--mailer-workers=1000"}},
		"/nonexistent/suite":       {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c.Rate, c.Freeze, c.Settle, c.Program = 20, time.Second, time.Second, "/nonexistent/suite"
			_, err := run(t, c)
			require.Equal(t, 2, exitStatus(err))
			require.ErrorContains(t, err, name)
		})
	}
	c := drill.Command{Data: filepath.Join(t.TempDir(), "none", "data"), Out: &bytes.Buffer{}}
	require.Equal(t, 2, exitStatus(c.RunContext(context.Background())))
}

func TestValidate(t *testing.T) {
	t.Parallel()
	err := (&drill.Command{Faults: 501}).Validate()
	for _, setting := range []string{"--duration", "--faults", "--rate", "--freeze", "--settle"} {
		require.ErrorContains(t, err, setting)
	}
}

func TestFindings(t *testing.T) {
	t.Parallel()
	fact := func(order string, version int64) e2e.Fact { return e2e.Fact{Order: order, Version: version} }
	facts := []e2e.Fact{fact("a", 1), fact("a", 2), fact("a", 3), fact("b", 1)}
	for name, c := range map[string]struct {
		mails                                []e2e.Fact
		lost, duplicated, reordered, unknown int
	}{
		"all":        {mails: []e2e.Fact{fact("b", 1), fact("a", 1), fact("a", 2), fact("a", 3)}},
		"lost":       {mails: []e2e.Fact{fact("a", 1), fact("a", 3), fact("b", 1)}, lost: 1},
		"duplicated": {mails: append([]e2e.Fact{fact("a", 1)}, append(facts, fact("a", 2))...), duplicated: 2},
		"reordered":  {mails: []e2e.Fact{fact("a", 2), fact("a", 1), fact("a", 3), fact("b", 1)}, reordered: 1},
		"unknown":    {mails: append([]e2e.Fact{fact("c", 1)}, facts...), unknown: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var r drill.Report
			r.Mails(facts, c.mails...)
			require.Equal(t, []int{c.lost, c.duplicated, c.reordered, c.unknown}, []int{r.Lost, r.Duplicated, r.Reordered, r.Unknown})
		})
	}
}

// TestEnvironment: the suite gets the user's settings, but none that leads out of the scratch folder.
func TestEnvironment(t *testing.T) {
	for _, name := range []string{"DATA", "HTTP", "ADMIN", "MAILER_PICKUP", "MAILER_TRANSPORT", "MAILER_SMTP_PASSWORD_FILE"} {
		t.Setenv("PILLARBOX_"+name, "elsewhere")
	}
	t.Setenv("PILLARBOX_MAILER_BATCH", "7")
	env := drill.Environment()
	require.Contains(t, env, "PILLARBOX_MAILER_BATCH=7")
	require.NotContains(t, strings.Join(env, "\n"), "elsewhere")
}
