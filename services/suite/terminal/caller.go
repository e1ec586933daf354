package terminal

import (
	"fmt"
	"os"
	"os/user"
	"time"
)

// Exit is an error that ends the command with this status.
func Exit(status int, text string) error { return &exit{status, text} }

type exit struct {
	status int
	text   string
}

func (e *exit) Error() string { return e.text }

// ExitStatus is for boot.Exit.
func (e *exit) ExitStatus() int { return e.status }

// Who is the caller, as user@host, for the services' records and logs.
func Who() string {
	name := "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if host, err := os.Hostname(); err == nil {
		name += "@" + host
	}
	return name
}

// Moment is a time on the command line: an absolute one, or how long ago.
type Moment struct{ time.Time }

// UnmarshalText reads 2026-11-30T11:00:00Z and 2h alike.
func (m *Moment) UnmarshalText(text []byte) (err error) {
	if ago, failed := time.ParseDuration(string(text)); failed == nil && ago > 0 {
		m.Time = time.Now().Add(-ago)
		return nil
	}
	if m.Time, err = time.Parse(time.RFC3339, string(text)); err != nil {
		return fmt.Errorf("%q is neither a time such as 2026-11-30T11:00:00Z nor how long ago, such as 2h", text)
	}
	return nil
}

// Count is a number of things in words: "1 event", "2 events".
func Count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
