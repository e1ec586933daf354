package sender

import (
	"context"
	"time"

	"github.com/pillarbox/pillarbox/services/mailer/internal/ledger"
	"github.com/pillarbox/pillarbox/services/mailer/internal/smtp"
	"github.com/pillarbox/pillarbox/shared/events"
	"github.com/pillarbox/pillarbox/shared/failpoint"
	"github.com/pillarbox/pillarbox/shared/logs"
	"github.com/pillarbox/pillarbox/shared/wait"
)

// worker sends one mail at a time, on a connection of its own.
type worker struct {
	*Sender
	session *smtp.Session // nil: none
}

// run works until ctx ends; the mail under way goes on until work ends.
func (w *worker) run(ctx, work context.Context) {
	defer w.close()
	idle := time.NewTimer(w.Idle)
	defer idle.Stop()
	for {
		idle.Reset(w.Idle)
		select {
		case <-ctx.Done():
			return
		case <-idle.C:
			w.close()
			continue
		case <-w.permits:
		}
		if ctx.Err() != nil {
			w.open.Add(-1)
			return
		}
		w.one(work)
		w.Wake()
	}
}

// one uses a permit: a connection first, then a mail.
func (w *worker) one(work context.Context) {
	err := w.connect(work)
	if err != nil {
		w.fails(work, err)
		w.open.Add(-1)
		return
	}
	mail, begun := w.clerk.claim()
	w.open.Add(-1)
	if mail == nil {
		return // another replica was quicker
	}
	w.clerk.settle(w.send(work, *mail, begun))
	if w.session != nil && w.session.Mails() >= w.PerConnection {
		w.close()
	}
}

// connect makes sure of a connection that stands. One that the server has ended meanwhile is no outage.
func (w *worker) connect(work context.Context) (err error) {
	if w.session == nil {
		select {
		case w.session = <-w.spare:
			w.Metrics.connections.Inc()
		default:
		}
	}
	if w.session != nil {
		if w.session.Reset(work) == nil {
			return nil
		}
		w.drop()
	}
	if w.session, err = w.dial(work); err != nil {
		w.session = nil
		return err
	}
	w.Metrics.connections.Inc()
	return nil
}

// send makes one attempt and says how it ended.
func (w *worker) send(work context.Context, d ledger.Outgoing, begun time.Time) ledger.Settlement {
	mail, at, err := w.compose(d)
	if err != nil {
		for _, i := range at {
			d.Recipients[i].State, d.Recipients[i].Reply = ledger.Refused, err.Error()
		}
		return w.ended(work, d, smtp.Result{Phase: "render", Err: err})
	}
	fresh := w.session.Mails() == 0
	start := time.Now()
	result := w.session.Send(work, mail, mail.Sender == w.From, begun.Add(w.SMTP.Server.WholeTimeout()), smtp.Hooks{
		Dotted: func() { failpoint.Hit("mailer.dotted") },
	})
	failpoint.Hit("mailer.answered")
	w.Metrics.duration.Observe(time.Since(start).Seconds())
	if !result.Usable {
		w.drop()
	}
	if !w.blamed(work, result, fresh) {
		return w.unburnt(work, d, result)
	}
	for n, i := range at {
		v := result.Recipients[n]
		d.Recipients[i].Reply = v.Reply
		switch v.State {
		case smtp.Accepted:
			d.Recipients[i].State = ledger.Accepted
		case smtp.Refused:
			d.Recipients[i].State = ledger.Refused
		case smtp.Unknown:
			d.Recipients[i].State = ledger.Unknown
		}
	}
	return w.ended(work, d, result)
}

// compose makes the mail for the recipients that are still to get it, and returns which these are.
func (w *worker) compose(d ledger.Outgoing) (mail smtp.Mail, at []int, err error) {
	for i, r := range d.Recipients {
		if r.State == ledger.Pending {
			mail.Recipients, at = append(mail.Recipients, r.Address), append(at, i)
		}
	}
	event, err := events.Decode(d.Event)
	if err != nil {
		return mail, at, err
	}
	l, err := w.Render(event)
	if err != nil {
		return mail, at, err
	}
	mail.Sender, mail.Data = l.Sender, l.Data
	return mail, at, nil
}

// blamed reports whether an attempt counts against its mail. Where the connection broke, a new one tells who
// is to blame.
func (w *worker) blamed(work context.Context, r smtp.Result, fresh bool) bool {
	for _, v := range r.Recipients {
		if v.State == smtp.Unknown || v.State == smtp.Accepted {
			return true
		}
	}
	switch {
	case work.Err() != nil:
		return false
	case r.Blame == smtp.OfServer:
		w.fails(work, r.Err)
		return false
	case r.Blame == smtp.OfConnection && r.Phase == "mail" && !fresh:
		return false // an old connection had its end
	case r.Blame == smtp.OfConnection:
		if err := w.connect(work); err != nil {
			w.fails(work, err)
			return false
		}
	}
	return true
}

// unburnt is the end of an attempt that says nothing about the mail.
func (w *worker) unburnt(work context.Context, d ledger.Outgoing, r smtp.Result) ledger.Settlement {
	d.Attempts--
	w.Metrics.results.WithLabelValues(resultReturned).Inc()
	w.Log.DebugContext(work, "mail was given back", "delivery", d.ID, logs.EventID, d.EventID, "phase", r.Phase)
	return ledger.Settlement{Outgoing: d}
}

// ended is the end of an attempt that counts.
func (w *worker) ended(work context.Context, d ledger.Outgoing, r smtp.Result) ledger.Settlement {
	s := ledger.Settlement{Outgoing: d, Earlier: d.Attempts > 1}
	if s.State() == ledger.Queued {
		s.Wait = w.backoff(d.Attempts)
		if time.Since(d.QueuedAt) >= w.GiveUp {
			for i := range d.Recipients {
				if d.Recipients[i].State == ledger.Pending {
					d.Recipients[i].State, d.Recipients[i].Reply = ledger.Refused, "given up: "+d.Recipients[i].Reply
				}
			}
		}
	}
	state := s.State()
	w.Metrics.results.WithLabelValues(state).Inc()
	// The server's words stay in the ledger: they may hold addresses.
	log := w.Log.With("delivery", d.ID, logs.EventID, d.EventID, logs.Key, d.OrderID, logs.Version, d.Version,
		logs.Attempt, d.Attempts, "phase", r.Phase)
	switch state {
	case ledger.Accepted:
		log.DebugContext(work, "mail was taken")
	case ledger.Queued:
		log.WarnContext(work, "mail was deferred", "retry_in", s.Wait)
	case ledger.Refused:
		log.ErrorContext(work, "mail was refused and is a dead letter")
	case ledger.Unknown:
		log.ErrorContext(work, "nobody knows whether a mail was taken: it was sent and no answer came")
	}
	return s
}

// backoff is the time before the attempt after the n-th.
func (s *Sender) backoff(n int) time.Duration {
	d := s.MaxBackoff
	if shift := n - 1; shift >= 0 && shift < 40 && s.Backoff<<shift>>shift == s.Backoff {
		d = min(d, s.Backoff<<shift)
	}
	return wait.Jitter(d)
}

// close ends the connection in good form, drop without a word.
func (w *worker) close() {
	if w.session != nil {
		w.session.Quit()
		w.forget()
	}
}

func (w *worker) drop() {
	if w.session != nil {
		w.session.Cut()
		w.forget()
	}
}

func (w *worker) forget() {
	w.session = nil
	w.Metrics.connections.Dec()
}
