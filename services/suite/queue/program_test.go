package queue_test

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// programPath is where this test binary builds the suite; TestMain removes it.
func programPath() string {
	return filepath.Join(os.TempDir(), fmt.Sprintf("pillarbox-queue-test-%d", os.Getpid()))
}

// program builds the suite once.
var program = sync.OnceValues(func() (string, error) {
	out, err := exec.Command("go", "build", "-o", programPath(), "github.com/pillarbox/pillarbox/services/suite").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build: %w: %s", err, out)
	}
	return programPath(), nil
})

// command is the program with arguments at the place, and with nothing of Pillarbox in its environment but env.
func (p *place) command(env []string, args ...string) *exec.Cmd {
	p.t.Helper()
	path, err := program()
	require.NoError(p.t, err)
	cmd := exec.Command(path, append([]string{"queue"}, args...)...)
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "PILLARBOX_") {
			cmd.Env = append(cmd.Env, e)
		}
	}
	cmd.Env = append(cmd.Env, env...)
	cmd.Dir = p.t.TempDir() // so that ./data is not somebody's
	return cmd
}

// exec runs the program and returns what it wrote and its exit status.
func (p *place) exec(in string, args ...string) (out, errOut string, code int) {
	p.t.Helper()
	cmd := p.command(nil, append(args, p.address...)...)
	return finish(p.t, cmd, in)
}

func finish(t testing.TB, cmd *exec.Cmd, in string) (out, errOut string, code int) {
	t.Helper()
	var outBuffer, errBuffer bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(in), &outBuffer, &errBuffer
	if err := cmd.Run(); err != nil {
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit)
	}
	return outBuffer.String(), errBuffer.String(), cmd.ProcessState.ExitCode()
}

func TestProgramExitStatus(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, p *place) {
		for _, step := range []struct {
			in, line, out, err string
			code               int
		}{
			{line: "create jobs", out: "queue jobs made\n"},
			{in: "hello\x00", line: "send jobs", out: "sent to jobs as sequence 1\n"},
			{line: "receive jobs --raw", out: "hello\x00"},
			{line: "receive jobs --timeout 1s", err: "suite: no message came from jobs within 1s\n", code: 3},
			{line: "receive other --timeout 1s", err: `suite: there is no queue "other"`, code: 1},
			{line: "receive jobs --timeout x", err: "suite: --timeout", code: 1},
			{line: "receive", err: "suite: ", code: 1},
			{in: "yes\n", line: "rm jobs", err: "needs --yes", code: 1},
			{line: "rm jobs --yes", out: "queue jobs removed\n"},
		} {
			out, errOut, code := p.exec(step.in, strings.Fields(step.line)...)
			require.Equal(t, step.code, code, "%s: %s", step.line, errOut)
			require.Equal(t, step.out, out, step.line)
			require.Contains(t, errOut, step.err, step.line)
			require.LessOrEqual(t, strings.Count(errOut, "\n"), 1, "%s: %s", step.line, errOut)
		}
	})
}

func TestProgramHelpNamesTheExitStatuses(t *testing.T) {
	t.Parallel()
	p := server(t)
	for _, name := range []string{"", "create", "ls", "info", "peek", "send", "receive", "purge", "pause", "resume", "rm"} {
		out, _, code := finish(t, p.command(nil, append(strings.Fields(name), "--help")...), "")
		require.Zero(t, code)
		require.Contains(t, out, "Exit status: 0", name)
		require.Contains(t, out, "--nats=URL", name)
	}
}

// A reader that takes one line and leaves is no reason to lose the next message, or to wait for the ack deadline.
func TestProgramInAPipe(t *testing.T) {
	t.Parallel()
	p := server(t)
	p.ok("create", "jobs")
	_, _, err := p.do(call{in: "one\ntwo\nthree\n"}, "send", "jobs", "--lines")
	require.NoError(t, err)
	reader, writer, err := os.Pipe()
	require.NoError(t, err)
	cmd := p.command(nil, append([]string{"receive", "jobs", "--follow"}, p.address...)...)
	var errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = writer, &errOut
	require.NoError(t, cmd.Start())
	require.NoError(t, writer.Close())
	first := make([]byte, 4)
	_, err = reader.Read(first)
	require.NoError(t, err)
	require.Equal(t, "one\n", string(first))
	require.NoError(t, reader.Close())
	p.send("jobs", "four") // should all have been written before the reader left
	err = cmd.Wait()
	require.Equal(t, 1, cmd.ProcessState.ExitCode(), "%v %s", err, errOut.String())
	require.Contains(t, errOut.String(), "broken pipe")
	require.Contains(t, p.ok("receive", "jobs", "-n", "9", "--timeout", "1s"), "four\n") // well before the ack deadline
	after := p.consumer("jobs", "tool")
	require.EqualValues(t, 0, after["in_flight"])
	require.EqualValues(t, 0, after["depth"])
}

func TestProgramIsStopped(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, p *place) {
		p.ok("create", "jobs", "-c", "w")
		for _, c := range []struct {
			args []string
			code int
		}{{[]string{"receive", "jobs", "-c", "w"}, 1}, {[]string{"receive", "jobs", "-c", "w", "--follow"}, 0}} {
			for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
				cmd := p.command(nil, append(c.args, p.address...)...)
				require.NoError(t, cmd.Start())
				require.Eventually(t, func() bool { return p.consumer("jobs", "w")["readers"].(float64) > 0 }, soon, waitTick)
				require.NoError(t, cmd.Process.Signal(s))
				_ = cmd.Wait() // its status is what counts
				require.Equal(t, c.code, cmd.ProcessState.ExitCode(), "%v %s", c.args, s)
			}
		}
	})
}

// A command that is killed while it has the folder open leaves it to the next.
func TestProgramIsKilled(t *testing.T) {
	t.Parallel()
	p := folder(t)
	p.ok("create", "jobs", "-c", "w")
	cmd := p.command(nil, append([]string{"receive", "jobs", "-c", "w"}, p.address...)...)
	require.NoError(t, cmd.Start())
	require.Eventually(t, func() bool { return p.consumer("jobs", "w")["readers"].(float64) > 0 }, soon, waitTick)
	require.NoError(t, cmd.Process.Kill())
	_ = cmd.Wait() // killed
	p.send("jobs", "after")
	require.Equal(t, "after\n", p.ok("receive", "jobs", "-c", "w"))
}

func TestProgramFindsItsAddress(t *testing.T) {
	t.Parallel()
	p, other := server(t), folder(t)
	p.ok("create", "here")
	other.ok("create", "there")
	url := "PILLARBOX_NATS_URL=" + p.address[1]
	file := filepath.Join(t.TempDir(), "url")
	require.NoError(t, os.WriteFile(file, []byte(p.address[1]+"\n"), 0o600))
	data := "PILLARBOX_DATA=" + other.dir
	for _, c := range []struct {
		env, args []string
		want      string
	}{
		{[]string{url}, nil, "here"},
		{[]string{"PILLARBOX_NATS_URL_FILE=" + file}, nil, "here"},
		{[]string{data}, nil, "there"},
		{[]string{url, data}, nil, "here"},
		{[]string{url}, []string{"--data", other.dir}, "there"},
		{[]string{data}, p.address, "here"},
	} {
		out, errOut, code := finish(t, p.command(c.env, append([]string{"ls"}, c.args...)...), "")
		require.Zero(t, code, errOut)
		require.Contains(t, out, c.want, "%v", c)
	}
	_, errOut, code := finish(t, p.command(nil, "ls"), "")
	require.Equal(t, 1, code)
	require.Contains(t, errOut, "no folder")
}

func TestProgramKeepsPasswordsToItself(t *testing.T) {
	t.Parallel()
	p := server(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	dead := l.Addr().String()
	require.NoError(t, l.Close())
	live := strings.Split(p.address[1], "@")[1]
	for _, url := range []string{
		"nats://user:hunter2@" + dead, "nats://user:hunter2@" + live, "nats://hunter2@" + live, "nats://user:hunter2@[", "hunter2\x7f://x",
	} {
		start := time.Now()
		out, errOut, code := finish(t, p.command(nil, "ls", "--nats", url), "")
		require.Equal(t, 1, code)
		require.NotContains(t, out+errOut, "hunter2", url)
		require.NotEmpty(t, errOut)
		require.Less(t, time.Since(start), soon)
	}
}
