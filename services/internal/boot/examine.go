package boot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"strings"
	"time"

	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/consumer"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/doctor"
	"github.com/pillarbox/pillarbox/shared/events"
	"github.com/pillarbox/pillarbox/shared/logs"
)

// Strictness says what a finding at the start means.
type Strictness struct {
	Strict bool `name:"strict" env:"PILLARBOX_STRICT" help:"Do not start when one of the checks of suite doctor finds something wrong; otherwise that is a warning in the log (1 or 0)."`
}

// Subject is one service as the checks see it.
type Subject struct {
	Name       string
	Migrations fs.FS
	// Settings are the service's. What they offer of Copies, ReplayHorizon, Remembers and Examine is made use of.
	Settings any
	DB       *database.DB
	Broker   *broker.Conn
}

// Look says how Examine looks.
type Look struct {
	// Syncs: the broker is known to fsync every write. Otherwise it is asked at Monitor, when that is set.
	Syncs   bool
	Monitor string
	// Starting: the service is about to start. What it puts right by itself is no finding then.
	Starting bool
	// Deep tries things out: a scratch file in the pickup folder, requests that the broker refuses.
	Deep bool
	// Slow is the 99th percentile of the time that handling a group takes, by service; may be nil.
	Slow map[string]time.Duration
}

// Examine adds to r what the checks find at a service. It changes nothing but a scratch file, and that only when deep.
func Examine(ctx context.Context, s Subject, l Look, r *doctor.Report) {
	r.Of(s.Name)
	if s.DB != nil {
		s.DB.Examine(ctx, database.Examination{Migrations: s.Migrations}, r)
		if own, ok := s.Settings.(interface {
			Examine(context.Context, *database.DB, bool, *doctor.Report)
		}); ok {
			own.Examine(ctx, s.DB, l.Deep, r)
		}
	}
	if s.Broker == nil {
		return
	}
	e := broker.Examination{
		Stream: events.StreamOrders, Syncs: l.Syncs, Monitor: l.Monitor, Durables: !l.Starting, Slow: l.Slow,
	}
	publisher, publishes := s.Settings.(interface{ Copies() int })
	if publishes {
		e.Replicas, e.Mends = publisher.Copies(), l.Starting
	}
	switch {
	case !l.Deep || l.Syncs: // an embedded broker has one user, whose name nobody else knows
	case publishes:
		e.Rights = broker.PublisherRights
	default:
		e.Rights = broker.SubscriberRights
	}
	s.Broker.Examine(ctx, e, r)
}

// Compare adds to r which of the services forget events that can still be published again.
func Compare(subjects []Subject, r *doctor.Report) {
	for _, from := range subjects {
		publisher, ok := from.Settings.(interface{ ReplayHorizon() time.Duration })
		if !ok {
			continue
		}
		for _, to := range subjects {
			subscriber, ok := to.Settings.(interface{ Remembers() time.Duration })
			if !ok { // it never forgets
				continue
			}
			if kept, horizon := subscriber.Remembers(), publisher.ReplayHorizon(); kept > 0 && consumer.CheckKeep(kept, horizon) != nil {
				r.Of(to.Name).Find(doctor.DedupTooShort, to.Name, "it remembers events for %s, %s can publish those of the last %s again",
					kept, from.Name, horizon)
			}
		}
	}
}

const (
	// strictPatience is how long a strict start waits for what it cannot see yet.
	strictPatience = 30 * time.Second
	strictPause    = 500 * time.Millisecond
	// Warnings come a moment after the start, which they must not slow down.
	warnAfter   = time.Second
	warnTimeout = 20 * time.Second
)

// Refuse examines the subjects thoroughly before their start. It returns an error when something is found, after one
// line in the log for each finding, and when something could not be seen for half a minute.
func Refuse(ctx context.Context, subjects []Subject, l Look, log *slog.Logger, more func(*doctor.Report)) error {
	l.Starting, l.Deep = true, true
	deadline, lastLine := time.Now().Add(strictPatience), time.Time{}
	for {
		r := examineAll(ctx, subjects, l, more)
		if refusals := r.Refusals(); len(refusals) > 0 {
			for _, f := range refusals {
				logFinding(ctx, log, slog.LevelError, f)
			}
			return fmt.Errorf("not started (PILLARBOX_STRICT): the checks found %s; the log has a line for each", codes(refusals))
		}
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		if len(r.Unseen) == 0 {
			return nil
		}
		unseen := errors.New(r.Unseen[0].String())
		if time.Now().After(deadline) {
			return fmt.Errorf("not started (PILLARBOX_STRICT): could not be checked: %w", unseen)
		}
		if time.Since(lastLine) >= waitLine {
			lastLine = time.Now()
			log.WarnContext(ctx, "a strict start waits for what cannot be checked yet", logs.Error, unseen)
		}
		select {
		case <-ctx.Done():
		case <-time.After(strictPause):
		}
	}
}

// Warn is a stage that examines the subjects once, lightly, a moment after the start, and logs each finding.
func Warn(subjects []Subject, l Look, log *slog.Logger, more func(*doctor.Report)) Stage {
	l.Starting = true
	return Stage{Name: "checks", Run: func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(warnAfter):
		}
		limited, cancel := context.WithTimeout(ctx, warnTimeout)
		r := examineAll(limited, subjects, l, more)
		cancel()
		if ctx.Err() == nil {
			for _, f := range r.Findings {
				logFinding(ctx, log, slog.LevelWarn, f)
			}
		}
		<-ctx.Done()
		return nil
	}}
}

// codes are the findings' codes in one line.
func codes(findings []doctor.Finding) string {
	var all []string
	for _, f := range findings {
		all = append(all, string(f.Code))
	}
	return strings.Join(all, ", ")
}

func examineAll(ctx context.Context, subjects []Subject, l Look, more func(*doctor.Report)) *doctor.Report {
	var r doctor.Report
	if more != nil {
		more(r.Of(""))
	}
	for _, s := range subjects {
		Examine(ctx, s, l, &r)
	}
	Compare(subjects, &r)
	return &r
}

func logFinding(ctx context.Context, log *slog.Logger, level slog.Level, f doctor.Finding) {
	log.Log(ctx, level, "unsafe installation", "code", f.Code, "where", f.Where, "problem", f.Problem,
		"endangers", f.Endangers, "fix", f.Fix)
}
