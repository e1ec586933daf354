package embedded

import (
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/pillarbox/pillarbox/shared/logs"
)

// logAdapter passes the server's log on. The server's notices are many, so
// they are debug lines here.
type logAdapter struct {
	log  *slog.Logger
	last atomic.Pointer[string] // of the last fatal line
}

const message = "embedded broker"

func (a *logAdapter) Noticef(format string, v ...any) {
	a.log.Debug(message, logs.Reason, fmt.Sprintf(format, v...))
}

func (a *logAdapter) Warnf(format string, v ...any) {
	a.log.Warn(message, logs.Reason, fmt.Sprintf(format, v...))
}

func (a *logAdapter) Errorf(format string, v ...any) {
	a.log.Error(message, logs.Reason, fmt.Sprintf(format, v...))
}

// Fatalf does not end the process, as the server's own loggers do: Start reports it.
func (a *logAdapter) Fatalf(format string, v ...any) {
	reason := fmt.Sprintf(format, v...)
	a.last.Store(&reason)
	a.log.Error(message, logs.Reason, reason)
}

func (a *logAdapter) Debugf(string, ...any) {}
func (a *logAdapter) Tracef(string, ...any) {}

// fatal is the last fatal line, or "".
func (a *logAdapter) fatal() string {
	if p := a.last.Load(); p != nil {
		return *p
	}
	return ""
}
