// Package terminal is how an operator's command talks to its caller: what it
// reads and writes, tables and JSON in which foreign text steers no terminal, and
// the question before something is destroyed.
package terminal

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// Streams are what a command reads, writes and is stopped by.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
	Person   bool            // somebody sits at In and Err and can be asked
	Screen   bool            // Out is a terminal: what would steer it is escaped
	Stop     <-chan struct{} // ends the command; nil: SIGINT and SIGTERM do
}

// Standard returns those of the process.
func Standard() *Streams {
	// A reader that goes away is an error like any other, and not the end of the process: a message that
	// could not be printed is given back.
	signal.Ignore(syscall.SIGPIPE)
	return &Streams{
		In: os.Stdin, Out: os.Stdout, Err: os.Stderr,
		Person: isTerminal(os.Stdin) && isTerminal(os.Stderr), Screen: isTerminal(os.Stdout),
	}
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	return err == nil
}

// Context ends when the command shall stop; a second signal has its usual effect.
func (s *Streams) Context() (context.Context, context.CancelFunc) {
	if s.Stop == nil {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
		context.AfterFunc(ctx, stop)
		return ctx, stop
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		select {
		case <-s.Stop:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// Note tells a person something that is no result.
func (s *Streams) Note(format string, args ...any) {
	_, _ = fmt.Fprintf(s.Err, format+"\n", args...) // there is no better place to complain
}

// Confirm returns nil when what was asked for may be destroyed: on yes, or when a person types yes.
func (s *Streams) Confirm(ctx context.Context, yes bool, format string, args ...any) error {
	if yes {
		return nil
	}
	what := Printable(fmt.Sprintf(format, args...), NoLimit)
	if !s.Person {
		return fmt.Errorf("not confirmed, nothing was done: %s Without a terminal to ask at, this needs --yes", what)
	}
	_, _ = fmt.Fprintf(s.Err, "%s\nType yes to go on: ", what)
	// Reading cannot be interrupted; after a stop the process ends and the reading with it.
	answer := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(io.LimitReader(s.In, 1024)).ReadString('\n') // an error is no yes
		answer <- line
	}()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case line := <-answer:
		if line != "yes\n" && line != "yes\r\n" && line != "yes" {
			return errors.New("not confirmed, nothing was done")
		}
		return nil
	}
}
