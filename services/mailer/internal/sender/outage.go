package sender

import (
	"context"
	"time"

	"github.com/pillarbox/pillarbox/services/mailer/internal/smtp"
	"github.com/pillarbox/pillarbox/shared/logs"
	"github.com/pillarbox/pillarbox/shared/wait"
)

const firstProbe, probeEvery = 100 * time.Millisecond, 3 * time.Second

// fails notes that the server takes no mail: until a probe succeeds nothing is begun.
//
//	up ── fails ──▶ down ── a probe connects ──▶ up
func (s *Sender) fails(ctx context.Context, err error) {
	if ctx.Err() != nil || !s.down.CompareAndSwap(nil, &outage{err}) {
		return
	}
	s.Metrics.down.Set(1)
	s.Log.WarnContext(ctx, "the mail server takes no mails", logs.Error, err)
	select {
	case s.downNow <- struct{}{}:
	default:
	}
}

// watch probes the server once at the start, so that a wrong setting is seen before the first mail, and
// whenever it is down.
func (s *Sender) watch(ctx context.Context) {
	if session, err := s.dial(ctx); err == nil {
		s.save(session)
	} else {
		s.fails(ctx, err)
	}
	wait, ended := firstProbe, time.Time{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.downNow:
		}
		// A server that connects and then takes nothing is asked less and less often.
		if time.Since(ended) < 2*wait+time.Second {
			wait = min(2*wait, 30*time.Second)
		} else {
			wait = firstProbe
		}
		begun := time.Now()
		if !s.probe(ctx, wait) {
			return
		}
		ended = time.Now()
		s.down.Store(nil)
		s.Metrics.down.Set(0)
		s.Log.InfoContext(ctx, "the mail server takes mails again", logs.Duration, ended.Sub(begun))
		s.Wake()
	}
}

// probe returns true once the server lets us in, false when ctx ended first.
func (s *Sender) probe(ctx context.Context, pause time.Duration) bool {
	for wait.For(ctx, wait.Jitter(pause)) {
		session, err := s.dial(ctx)
		if err == nil {
			s.save(session)
			return true
		}
		if ctx.Err() == nil {
			s.down.Store(&outage{err}) // the newest reason
		}
		pause = min(2*pause, max(pause, probeEvery))
	}
	return false
}

func (s *Sender) dial(ctx context.Context) (*smtp.Session, error) {
	session, err := smtp.Dial(ctx, s.SMTP)
	if err == nil {
		s.Metrics.dials.Inc()
	}
	return session, err
}

// save keeps a connection for the next worker, or closes it.
func (s *Sender) save(session *smtp.Session) {
	select {
	case s.spare <- session:
	default:
		session.Quit()
	}
}
