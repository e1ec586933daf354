package queue_test

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// pseudoTerminal opens a pseudo-terminal: what a program sees as its terminal, and the person's end of it.
func pseudoTerminal(t *testing.T) (program, person *os.File) {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		require.Empty(t, os.Getenv("CI"), "no pseudo-terminals: %v", err)
		t.Skipf("no pseudo-terminals: %v", err)
	}
	t.Cleanup(func() { _ = person.Close() }) // may be closed already
	require.NoError(t, unix.IoctlSetPointerInt(int(person.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(person.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = program.Close() })
	return program, person
}

// ask runs a command at a terminal, types the answer when it is asked, and returns what was on the screen.
func (p *place) ask(t *testing.T, answer string, args ...string) (screen string, code int) {
	t.Helper()
	tty, person := pseudoTerminal(t)
	cmd := p.command(nil, append(args, p.address...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	require.NoError(t, cmd.Start())
	require.NoError(t, tty.Close())
	from := bufio.NewReader(person)
	for {
		r, _, err := from.ReadRune()
		if err != nil { // EIO: the program has closed its end
			break
		}
		screen += string(r)
		if strings.HasSuffix(screen, "Type yes to go on: ") {
			_, err := person.WriteString(answer)
			require.NoError(t, err)
		}
	}
	_ = cmd.Wait() // its status is what counts
	return screen, cmd.ProcessState.ExitCode()
}

func TestProgramAsksAPerson(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, p *place) {
		p.ok("create", "jobs")
		p.send("jobs", "a\x1b[31m")
		screen, code := p.ask(t, "no\n", "rm", "jobs")
		require.Equal(t, 1, code)
		require.Contains(t, screen, "Remove queue jobs with its 1 messages")
		require.Contains(t, screen, "nothing was done")
		screen, code = p.ask(t, "\x04", "rm", "jobs") // end of file
		require.Equal(t, 1, code, screen)
		screen, code = p.ask(t, "\x03", "rm", "jobs") // Ctrl-C
		require.Equal(t, 1, code, screen)
		require.Contains(t, screen, "interrupted")

		screen, code = p.ask(t, "", "receive", "jobs")
		require.Zero(t, code, screen)
		require.Equal(t, `a\x1b[31m`+"\r\n", screen)
		screen, code = p.ask(t, "yes\n", "purge", "jobs")
		require.Zero(t, code, screen)
		require.Contains(t, screen, "1 messages removed from jobs")
	})
}
