package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/pillarbox/pillarbox/shared/database/databasetest"
	"github.com/pillarbox/pillarbox/shared/database/databasetest/postgres"
)

const (
	image         = "postgres:17"
	askPatience   = 5 * time.Second
	imagePatience = 5 * time.Minute // with the download
	aptPatience   = 10 * time.Minute
)

// find returns the first server that can be had; its error says why each way failed.
func (l launcher) find(ctx context.Context, durable bool) (server, error) {
	if url := l.getenv(databasetest.EnvURL); url != "" {
		return server{url: url, from: "the server that " + databasetest.EnvURL + " names"}, nil
	}
	var reasons []error
	for _, way := range l.ways {
		s, err := way(ctx, durable, l.notes)
		if err == nil {
			return s, nil
		}
		if ctx.Err() != nil {
			return server{}, err
		}
		reasons = append(reasons, err)
	}
	return server{}, errors.Join(reasons...)
}

func local(ctx context.Context, durable bool, _ io.Writer) (server, error) {
	s, err := postgres.Start(ctx, postgres.Config{Durable: durable})
	if err != nil {
		return server{}, fmt.Errorf("on this machine: %w", err)
	}
	return server{url: s.URL(), from: "a scratch server on this machine", close: s.Close}, nil
}

func docker(ctx context.Context, durable bool, notes io.Writer) (server, error) {
	if _, err := output(ctx, askPatience, "docker", "version", "--format", "{{.Server.Version}}"); err != nil {
		return server{}, fmt.Errorf("docker: %w", err)
	}
	fmt.Fprintln(notes, "withpostgres: starting a container of", image)
	args := []string{
		"run", "--detach", "--rm", "--publish", "127.0.0.1::5432",
		"--env", "POSTGRES_HOST_AUTH_METHOD=trust", image, "-c", "max_connections=300",
	}
	if !durable {
		args = append(args, "-c", "fsync=off", "-c", "full_page_writes=off")
	}
	id, err := output(ctx, imagePatience, "docker", args...)
	if err != nil {
		return server{}, fmt.Errorf("docker: %w", err)
	}
	s := server{from: "a container of " + image, close: func() error {
		_, err := output(context.WithoutCancel(ctx), time.Minute, "docker", "rm", "--force", "--volumes", id)
		return err
	}}
	address, err := output(ctx, askPatience, "docker", "port", id, "5432/tcp")
	if err == nil {
		first, _, _ := strings.Cut(address, "\n")
		s.url = "postgres://postgres@" + first + "/postgres?sslmode=disable"
		err = await(ctx, s.url)
	}
	if err != nil {
		return server{}, errors.Join(fmt.Errorf("docker: %w", err), s.stop())
	}
	return s, nil
}

func await(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		err := postgres.Answers(ctx, url)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func apt(ctx context.Context, durable bool, notes io.Writer) (server, error) {
	if os.Geteuid() != 0 {
		return server{}, errors.New("apt-get: only root may install packages")
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return server{}, fmt.Errorf("apt-get: %w", err)
	}
	fmt.Fprintln(notes, "withpostgres: installing the package postgresql")
	// The lists may be old: then the install fails, so an update that fails in part is no reason to stop.
	if _, err := output(ctx, aptPatience, "apt-get", "update", "-q"); err != nil {
		fmt.Fprintln(notes, "withpostgres: apt-get update:", err)
	}
	_, err := output(ctx, aptPatience, "env", "DEBIAN_FRONTEND=noninteractive",
		"apt-get", "install", "-y", "-q", "--no-install-recommends", "postgresql")
	if err != nil {
		return server{}, fmt.Errorf("apt-get: %w", err)
	}
	return local(ctx, durable, notes)
}

// output runs a program to its end and returns what it printed, without the last newline.
func output(ctx context.Context, patience time.Duration, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, name, args...).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return "", fmt.Errorf("%s: %w: %s", args[0], err, tail(exit.Stderr))
	}
	return strings.TrimSpace(string(out)), err
}

func tail(text []byte) string {
	return strings.TrimSpace(string(text[max(0, len(text)-500):]))
}
