package boot_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/internal/boot"
	"github.com/pillarbox/pillarbox/shared/doctor"
	"github.com/pillarbox/pillarbox/shared/logs"
)

type publisher struct{ horizon time.Duration }

func (p publisher) ReplayHorizon() time.Duration { return p.horizon }

type memory struct{ kept time.Duration }

func (m memory) Remembers() time.Duration { return m.kept }

func TestDedupOutlivesReplay(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kept  time.Duration
		found bool
	}{{0, false}, {time.Hour, true}, {72 * time.Hour, true}, {73 * time.Hour, true}, {74 * time.Hour, false}} {
		var r doctor.Report
		boot.Compare([]boot.Subject{
			{Name: "store", Settings: publisher{72 * time.Hour}}, {Name: "loyalty", Settings: memory{c.kept}}, {Name: "audit"},
		}, &r)
		require.Equal(t, c.found, len(r.Findings) == 1, "%s: %v", c.kept, r.Findings)
		if c.found {
			require.Equal(t, []doctor.Code{doctor.DedupTooShort}, r.Codes())
			require.Equal(t, []string{"loyalty"}, r.Findings[0].Services)
		}
	}
}

func TestRefuse(t *testing.T) {
	t.Parallel()
	find := func(code doctor.Code) func(*doctor.Report) {
		return func(r *doctor.Report) { r.Find(code, "there", "it is so") }
	}
	refuse := func(more func(*doctor.Report)) (string, error) {
		var log bytes.Buffer
		err := boot.Refuse(t.Context(), nil, boot.Look{}, logs.New(&log, "text", slog.LevelInfo), more)
		return log.String(), err
	}
	log, err := refuse(nil)
	require.NoError(t, err)
	require.Empty(t, log)
	_, err = refuse(find(doctor.SchemaAhead))
	require.NoError(t, err, "an upgrade may be under way")
	log, err = refuse(find(doctor.PGFsync))
	require.ErrorContains(t, err, "PILLARBOX_STRICT")
	require.ErrorContains(t, err, "PBX-501")
	require.Equal(t, 1, strings.Count(log, "\n"))
	require.Contains(t, log, "level=ERROR")
	require.Contains(t, log, "ALTER SYSTEM SET fsync = on")

	// What cannot be seen at first is waited for.
	looks := 0
	log, err = refuse(func(r *doctor.Report) {
		if looks++; looks < 3 {
			r.Miss(doctor.Clock, "there", context.DeadlineExceeded)
		}
	})
	require.NoError(t, err)
	require.Equal(t, 3, looks)
	require.Equal(t, 1, strings.Count(log, "level=WARN"))
}

// TestWarnings come once, a moment after the start, and stop nothing.
func TestWarnings(t *testing.T) {
	t.Parallel()
	var log logged
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	stage := boot.Warn(nil, boot.Look{}, logs.New(&log, "text", slog.LevelInfo), func(r *doctor.Report) {
		r.Find(doctor.PGFsync, "there", "it is so")
	})
	go func() { ended <- stage.Run(ctx) }()
	require.Eventually(t, func() bool { return strings.Contains(log.String(), "code=PBX-501") }, time.Minute, 10*time.Millisecond)
	cancel()
	require.NoError(t, <-ended)
	require.Equal(t, 1, strings.Count(log.String(), "level=WARN"))
}

// logged is what was logged, to be read meanwhile.
type logged struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
