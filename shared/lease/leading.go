package lease

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/pillarbox/pillarbox/shared/logs"
)

// leadOnce takes the office through term, keeps the lease until it has handed over, and gives the lease
// back. It returns the office's error, unless that is how it reacted to losing the lease or to the
// end of ctx.
//
// deadline is on this process's monotonic clock and counts from before the
// request was sent, so it comes no later than the row expires on the database's
// clock, however long the answer took.
func (l *Lease) leadOnce(ctx context.Context, term int64, deadline time.Time, office Office) error {
	log := l.log.With(logs.Term, term)
	log.InfoContext(ctx, "lease won")
	l.metrics.terms.Inc()
	defer l.enter(Following)
	holding, lose := context.WithCancelCause(context.WithoutCancel(ctx))
	defer lose(nil)
	leading, end := context.WithCancelCause(holding)
	defer end(nil)
	defer context.AfterFunc(ctx, func() { end(context.Cause(ctx)) })()
	done := make(chan error, 1)
	go func() { done <- l.serve(leading, holding, term, office) }()

	k := l.newKeeper(ctx, term)
	defer k.close()
	err, kept := k.keep(deadline, done)
	if kept {
		l.giveBack(ctx, term, log)
	} else {
		lose(ErrLost)
		l.metrics.lost.Inc()
		log.WarnContext(ctx, "lease lost")
		err = <-done
	}
	if err != nil {
		log.ErrorContext(ctx, "leader failed", logs.Error, err)
	}
	return err
}

// serve is one term of the office.
func (l *Lease) serve(leading, holding context.Context, term int64, office Office) error {
	l.enter(Inaugurating)
	if office.Inaugurate != nil {
		if err := office.Inaugurate(leading, term); err != nil {
			return unlessEnded(leading, err)
		}
	}
	l.enter(Leading)
	err := unlessEnded(leading, office.Execute(leading, term))
	l.enter(HandingOver)
	if office.HandOver != nil {
		err = errors.Join(err, unlessEnded(holding, office.HandOver(holding, term)))
	}
	return err
}

// unlessEnded drops an error that only says that ctx has ended or the lease is lost.
func unlessEnded(ctx context.Context, err error) error {
	if ctx.Err() != nil && errors.Is(err, context.Canceled) || errors.Is(err, ErrLost) {
		return nil
	}
	return err
}

// giveBack lets the next leader begin, and tells the followers.
func (l *Lease) giveBack(ctx context.Context, term int64, log *slog.Logger) {
	if err := l.release(ctx, term); err != nil {
		// It expires by itself; the next leader only begins later.
		log.WarnContext(ctx, "lease not given back", logs.Error, err)
		return
	}
	log.InfoContext(ctx, "lease given back")
	if l.c.Hints != nil {
		l.c.Hints.Tell(l.c.Name, l.c.Holder)
	}
}

// keeper renews one term of a lease.
type keeper struct {
	l       *Lease
	term    int64
	ctx     context.Context // of the renewals
	cancel  context.CancelFunc
	pending sync.WaitGroup // the renewal under way
	answers chan renewal   // buffered: at most one renewal is under way
}

// renewal is the answer to one request, sent at a moment of the monotonic clock.
type renewal struct {
	sent time.Time
	err  error
}

func (l *Lease) newKeeper(ctx context.Context, term int64) *keeper {
	k := &keeper{l: l, term: term, answers: make(chan renewal, 1)}
	// The office may go on for a while after ctx has ended, to finish what it began.
	k.ctx, k.cancel = context.WithCancel(context.WithoutCancel(ctx))
	return k
}

func (k *keeper) close() {
	k.cancel()
	k.pending.Wait()
}

// keep renews until the office is done (then it returns its error and true) or the
// lease is lost.
func (k *keeper) keep(deadline time.Time, done <-chan error) (error, bool) {
	ttl := k.l.c.TTL
	expiry := time.NewTimer(time.Until(deadline))
	defer expiry.Stop()
	next := time.NewTimer(ttl / 3)
	defer next.Stop()
	failing := false
	for {
		select {
		case err := <-done:
			return err, true
		case <-expiry.C:
			return nil, false
		case <-next.C: // set again by the answer
			k.send()
		case a := <-k.answers:
			switch {
			case errors.Is(a.err, ErrLost):
				return nil, false
			case a.err != nil:
				if !failing {
					k.l.log.WarnContext(k.ctx, "lease not renewed, trying again", logs.Error, a.err)
				}
				failing = true
				next.Reset(ttl / 10)
			default:
				failing = false
				expiry.Reset(time.Until(a.sent.Add(ttl)))
				next.Reset(time.Until(a.sent.Add(ttl / 3)))
			}
		}
	}
}

// send renews in the background, so that a slow answer delays neither the
// deadline nor the end of the term.
func (k *keeper) send() {
	k.pending.Go(func() {
		a := renewal{sent: time.Now()}
		ctx, cancel := context.WithTimeout(k.ctx, k.l.c.TTL/3)
		defer cancel()
		a.err = k.l.renew(ctx, k.term)
		k.answers <- a
	})
}
