// Command withpostgres runs another command with a PostgreSQL server at hand:
//
//	go run ./shared/database/databasetest/withpostgres -- go test ./...
//
// The server's URL is in PILLARBOX_TEST_POSTGRES_URL. It is, in this order: the
// one the variable names already; a scratch server from programs on this
// machine; a Docker container; or, for root on a Debian machine, a scratch server
// from the package it installs. Without any of these the command runs without
// the variable, so that tests skip what they cannot do; with CI set it does not run at all.
//
// It ends with the command's exit status, passes SIGINT and SIGTERM on to it, and stops
// what it started. When it is itself killed, a server may stay behind.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/pillarbox/pillarbox/shared/database/databasetest"
)

func main() {
	l := launcher{notes: os.Stderr, getenv: os.Getenv, ways: []way{local, docker, apt}}
	os.Exit(l.run(os.Args[1:]))
}

// launcher is one run of this program; its parts are replaced in tests.
type launcher struct {
	notes  io.Writer
	getenv func(string) string
	ways   []way // to get a server, in the order to try them
}

type way func(ctx context.Context, durable bool, notes io.Writer) (server, error)

func (l launcher) run(args []string) int {
	notes := l.notes
	flags := flag.NewFlagSet("withpostgres", flag.ContinueOnError)
	flags.SetOutput(notes)
	durable := flags.Bool("durable", false, "keep fsync on in the scratch server: for measuring and for power-loss tests")
	flags.Usage = func() {
		fmt.Fprintln(notes, "usage: withpostgres [-durable] -- command [argument …]")
		flags.PrintDefaults()
	}
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if flags.NArg() == 0 {
		flags.Usage()
		return 2
	}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)

	server, err := l.obtain(signals, *durable)
	var interrupted *interruptedError
	switch {
	case errors.As(err, &interrupted):
		return interrupted.status()
	case err != nil && l.getenv("CI") != "":
		fmt.Fprintf(notes, "withpostgres: no PostgreSQL server, and CI must run the PostgreSQL tests:\n%v\n", err)
		return 1
	case err != nil:
		fmt.Fprintf(notes, "withpostgres: NO POSTGRESQL SERVER: TESTS THAT NEED ONE WILL BE SKIPPED:\n%v\n", err)
	default:
		fmt.Fprintf(notes, "withpostgres: using %s\n", server.from)
	}
	status := execute(flags.Args(), server.environment(), signals, notes)
	if err := server.stop(); err != nil {
		fmt.Fprintf(notes, "withpostgres: stop the server: %v\n", err)
		return max(status, 1)
	}
	return status
}

// server is a PostgreSQL server for the command; its zero value is none.
type server struct {
	url, from string
	close     func() error // nil when it was not started here
}

func (s server) stop() error {
	if s.close == nil {
		return nil
	}
	return s.close()
}

func (s server) environment() []string {
	if s.url == "" {
		return os.Environ()
	}
	return append(os.Environ(), databasetest.EnvURL+"="+s.url)
}

type interruptedError struct{ signal os.Signal }

func (e *interruptedError) Error() string { return "interrupted by " + e.signal.String() }

func (e *interruptedError) status() int {
	number, _ := e.signal.(syscall.Signal)
	return 128 + int(number)
}

// obtain looks for a server until a signal comes.
func (l launcher) obtain(signals <-chan os.Signal, durable bool) (server, error) {
	ctx, cancel := context.WithCancelCause(context.Background())
	type result struct {
		server server
		err    error
	}
	found := make(chan result, 1)
	go func() {
		s, err := l.find(ctx, durable)
		found <- result{s, err}
	}()
	select {
	case r := <-found:
		cancel(nil)
		return r.server, r.err
	case s := <-signals:
		cancel(nil)
		r := <-found // what was half started has to be stopped
		return server{}, errors.Join(&interruptedError{s}, r.server.stop())
	}
}

// execute runs the command and returns its exit status, in the manner of a shell.
func execute(args, environment []string, signals <-chan os.Signal, notes io.Writer) int {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Env = os.Stdin, os.Stdout, os.Stderr, environment
	if err := cmd.Start(); err != nil {
		fmt.Fprintf(notes, "withpostgres: %v\n", err)
		return 127
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case s := <-signals:
			_ = cmd.Process.Signal(s) // it may have ended just now
		case err := <-ended:
			return statusOf(err)
		}
	}
}

func statusOf(err error) int {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case !errors.As(err, &exit):
		return 1
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return exit.ExitCode()
}
