// Package logs holds the keys of structured log lines, so that one fact has one
// name in every service, and makes the logger of a process.
package logs

import (
	"io"
	"log/slog"
)

// Keys of log attributes. Addresses, names and bodies are never logged.
const (
	Service   = "service"
	Error     = "error"
	EventID   = "event_id"
	EventType = "event_type"
	Key       = "key" // order id
	Version   = "version"
	Consumer  = "consumer"
	Attempt   = "attempt"
	Sequence  = "sequence"
	Count     = "count"
	Duration  = "duration"
	Reason    = "reason"
	Term      = "term"
	Address   = "address" // a listening address
	Path      = "path"
)

// New returns a JSON or text logger at level (debug, info, warn, error).
func New(w io.Writer, format string, level slog.Level) *slog.Logger {
	o := &slog.HandlerOptions{Level: level}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}

// Discard is a logger for tests.
func Discard() *slog.Logger { return slog.New(slog.DiscardHandler) }
