package main

// Inside the package, since a machine without any server cannot be had by an
// environment alone.

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWithoutServerItIsLoudAndFailsInCI(t *testing.T) {
	t.Parallel()
	failing := func(context.Context, bool, io.Writer) (server, error) { return server{}, errors.New("none here") }
	for ci, want := range map[string]int{"": 3, "true": 1} {
		var notes bytes.Buffer
		l := launcher{notes: &notes, ways: []way{failing, failing}, getenv: func(name string) string {
			if name == "CI" {
				return ci
			}
			return ""
		}}
		require.Equal(t, want, l.run([]string{"--", "sh", "-c", "exit 3"}), "CI=%q", ci)
		require.Contains(t, notes.String(), "none here\nnone here")
		if ci == "" {
			require.Contains(t, notes.String(), "WILL BE SKIPPED")
		}
	}
}

func TestStopsWhatItStartedAlsoWhenTheCommandFails(t *testing.T) {
	t.Parallel()
	closed := 0
	started := func(_ context.Context, durable bool, _ io.Writer) (server, error) {
		require.True(t, durable)
		return server{url: "postgres://x", from: "a test", close: func() error { closed++; return nil }}, nil
	}
	l := launcher{notes: io.Discard, ways: []way{started}, getenv: func(string) string { return "" }}
	require.Equal(t, 5, l.run([]string{"-durable", "--", "sh", "-c", "exit 5"}))
	require.Equal(t, 127, l.run([]string{"-durable", "--", "/no/such/program"}))
	require.Equal(t, 2, closed)
}
