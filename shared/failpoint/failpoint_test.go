package failpoint_test

import (
	"bytes"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/pillarbox/pillarbox/shared/failpoint"
	"github.com/stretchr/testify/require"
)

const childEnv = "FAILPOINT_TEST_CHILD"

// TestMain doubles as the process that dies: it hits two names five times and ends well if it lives.
func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		for range 5 {
			failpoint.Hit("test.other")
			_, _ = os.Stdout.WriteString(".")
			failpoint.Hit("test.step")
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func child(t *testing.T, setting string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), childEnv+"=1", failpoint.Environment+"="+setting)
	var out bytes.Buffer
	cmd.Stdout = &out
	return cmd, &out
}

func TestWithoutSettingNothingHappens(t *testing.T) {
	t.Parallel()
	for _, setting := range []string{"", "test.absent:1", "test.step:6"} {
		cmd, out := child(t, setting)
		require.NoError(t, cmd.Run(), setting)
		require.Equal(t, ".....", out.String())
	}
}

func TestKillsAtTheGivenCount(t *testing.T) {
	t.Parallel()
	cmd, out := child(t, "test.step:3")
	err := cmd.Run()
	if !failpoint.Enabled {
		require.NoError(t, err, "a normal build must not obey the variable")
		return
	}
	status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	require.True(t, ok)
	require.Equal(t, syscall.SIGKILL, status.Signal())
	require.Equal(t, "...", out.String())
}

func TestPauseStopsUntilContinued(t *testing.T) {
	t.Parallel()
	if !failpoint.Enabled {
		t.Skip("needs -tags failpoint")
	}
	cmd, out := child(t, "test.step:pause")
	require.NoError(t, cmd.Start())
	var status syscall.WaitStatus
	_, err := syscall.Wait4(cmd.Process.Pid, &status, syscall.WUNTRACED, nil)
	require.NoError(t, err)
	require.True(t, status.Stopped())
	require.NoError(t, cmd.Process.Signal(syscall.SIGCONT))
	require.NoError(t, cmd.Wait())
	require.Equal(t, ".....", out.String())
}

func TestBadSettingIsNotIgnored(t *testing.T) {
	t.Parallel()
	if !failpoint.Enabled {
		t.Skip("needs -tags failpoint")
	}
	for _, setting := range []string{"test.step", ":3", "test.step:0", "test.step:x"} {
		cmd, _ := child(t, setting)
		require.Error(t, cmd.Run(), setting)
	}
}
