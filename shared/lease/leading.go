package lease

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/pillarbox/pillarbox/shared/logs"
)

// leadOnce runs lead under term, keeps the lease until lead has returned, and
// gives it back. It returns lead's error, unless that is how lead reacted to
// losing the lease or to the end of ctx.
//
// deadline is on this process's monotonic clock and counts from before the
// request was sent, so it comes no later than the row expires on the database's
// clock, however long the answer took.
func (l *Lease) leadOnce(
	ctx context.Context, term int64, deadline time.Time, lead func(ctx context.Context, term int64) error,
) error {
	log := l.log.With(logs.Term, term)
	log.InfoContext(ctx, "lease won")
	leading, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan error, 1)
	go func() { done <- lead(leading, term) }()

	k := l.newKeeper(ctx, term)
	defer k.close()
	err, kept := k.keep(deadline, done)
	if kept {
		if failed := l.release(ctx, term); failed != nil {
			// It expires by itself; the next leader only begins later.
			log.WarnContext(ctx, "lease not given back", logs.Error, failed)
		} else {
			log.InfoContext(ctx, "lease given back")
		}
	} else {
		cancel(ErrLost)
		log.WarnContext(ctx, "lease lost")
		err = <-done
	}
	stopped := leading.Err() != nil && errors.Is(err, context.Canceled)
	if err == nil || stopped || errors.Is(err, ErrLost) {
		return nil
	}
	log.ErrorContext(ctx, "leader failed", logs.Error, err)
	return err
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
	// Lead may go on for a while after ctx has ended, to finish what it began.
	k.ctx, k.cancel = context.WithCancel(context.WithoutCancel(ctx))
	return k
}

func (k *keeper) close() {
	k.cancel()
	k.pending.Wait()
}

// keep renews until lead is done (then it returns lead's error and true) or the
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
// deadline nor the end of lead.
func (k *keeper) send() {
	k.pending.Go(func() {
		a := renewal{sent: time.Now()}
		ctx, cancel := context.WithTimeout(k.ctx, k.l.c.TTL/3)
		defer cancel()
		a.err = k.l.renew(ctx, k.term)
		k.answers <- a
	})
}
