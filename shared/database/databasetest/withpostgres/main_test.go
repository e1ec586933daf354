package main_test

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/shared/database/databasetest"
	"github.com/pillarbox/pillarbox/shared/database/databasetest/postgres"
)

func build(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "withpostgres")
	out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput()
	require.NoError(t, err, string(out))
	return program
}

// command runs program with an environment that has only the given variables beside the ordinary ones.
func command(program string, environment []string, args ...string) *exec.Cmd {
	cmd := exec.Command(program, args...)
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, databasetest.EnvURL+"=") && !strings.HasPrefix(v, "CI=") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, environment...)
	return cmd
}

func TestPassesExitStatusAndURLOn(t *testing.T) {
	t.Parallel()
	program := build(t)
	given := databasetest.EnvURL + "=postgres://given"
	out, err := command(program, []string{given}, "--", "sh", "-c", "echo $"+databasetest.EnvURL+"; exit 7").Output()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 7, exit.ExitCode())
	require.Equal(t, "postgres://given\n", string(out))

	err = command(program, []string{given}, "--", "sh", "-c", "kill -TERM $$").Run()
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 128+int(syscall.SIGTERM), exit.ExitCode())

	err = command(program, []string{given}, "--", "/no/such/program").Run()
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 127, exit.ExitCode())

	require.ErrorAs(t, command(program, nil).Run(), &exit)
	require.Equal(t, 2, exit.ExitCode())
}

func TestStopsItsServerAfterASignal(t *testing.T) {
	t.Parallel()
	if _, err := postgres.Find(); err != nil {
		t.Skip(err)
	}
	scratch := t.TempDir() // where the cluster's folder would stay behind
	require.NoError(t, os.Chmod(filepath.Dir(scratch), 0o755))
	require.NoError(t, os.Chmod(scratch, 0o777))
	cmd := command(build(t), []string{"TMPDIR=" + scratch}, "--",
		"sh", "-c", `trap 'exit 9' TERM; echo $`+databasetest.EnvURL+`; while :; do sleep 0.05; done`)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	line, err := bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)
	url := strings.TrimSpace(line)
	require.NoError(t, postgres.Answers(t.Context(), url))

	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	var exit *exec.ExitError
	require.ErrorAs(t, cmd.Wait(), &exit)
	require.Equal(t, 9, exit.ExitCode())
	require.Error(t, postgres.Answers(t.Context(), url))
	left, err := os.ReadDir(scratch)
	require.NoError(t, err)
	require.Empty(t, left)
}
