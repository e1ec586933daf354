// Package lease elects one leader among the replicas of a service by a row in
// the service's own database, with a term that rises at every change of leader
// and is checked on the leader's writes.
//
// It promises that at most one term is current, that a write guarded by Check
// happens only under the current term, and that a leader which cannot renew (cut
// off, frozen) has its context cancelled no later than the row expires. It does
// not promise that two leaders never run at the same moment: a process may be
// frozen between any two instructions and go on as a leader of the past. That is
// what Check is for, and effects outside the database must bear to be repeated.
//
// A replica goes round these states; State and the metric lease_state show them:
//
//	following ──row won──▶ inaugurating ──▶ leading ──▶ handing over ──row given back, hint──▶ following
//
// Handing over means to finish what is under way while the row is still held; then
// the row is given back and a hint tells the followers, so that the next leader
// begins at once. A hint that is lost costs a poll. Who loses the row hands over too,
// to stop its own work in order, and gives nothing back.
//
// A crash leaves the row behind; the next leader begins when it expires, within
// TTL and one poll.
package lease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/google/uuid"

	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/logs"
)

// ErrLost means that another holder has a higher term: the write must not happen.
var ErrLost = errors.New("lease lost")

const (
	defaultTTL = 5 * time.Second
	minTTL     = 100 * time.Millisecond // SQLite's clock ticks in milliseconds
	// maxPoll bounds how long a lease that was given back lies idle.
	maxPoll = 400 * time.Millisecond

	keyLease = "lease"
)

// Config of a Lease.
type Config struct {
	Name   string        // which leadership, e.g. "relay"
	Holder string        // who we are; unique per process
	TTL    time.Duration // how long a silent leader keeps it. Default 5 s
	Poll   time.Duration // how often a follower looks, at least (with jitter). Default TTL/4, at most 400 ms
	Hints  Hints         // how followers hear of an orderly end before they look; nil: they do not
}

// Validate lists all that is wrong with c.
func (c Config) Validate() error {
	var errs []error
	if len(c.Name) < 1 || len(c.Name) > 64 {
		errs = append(errs, errors.New("lease name must have 1 to 64 characters"))
	}
	if len(c.Holder) < 1 || len(c.Holder) > 200 {
		errs = append(errs, errors.New("lease holder must have 1 to 200 characters"))
	}
	if c.TTL != 0 && c.TTL < minTTL {
		errs = append(errs, fmt.Errorf("lease TTL must be at least %s", minTTL))
	}
	if c.Poll < 0 {
		errs = append(errs, errors.New("lease poll must not be negative"))
	}
	return errors.Join(errs...)
}

// HolderName names this process among the replicas: readable, and unique also for two in one process.
func HolderName() string {
	host, err := os.Hostname()
	if err != nil || len(host) > 100 {
		host = "unknown"
	}
	return fmt.Sprintf("%s/%d/%s", host, os.Getpid(), uuid.NewString())
}

// Lease is one replica's part in the election. It is a prometheus.Collector.
type Lease struct {
	c       Config
	db      *database.DB
	log     *slog.Logger
	poke    chan struct{}
	state   atomic.Int32 // a State
	metrics metrics
}

// New checks c; it does no I/O.
func New(c Config, db *database.DB, log *slog.Logger) (*Lease, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if db == nil || log == nil {
		return nil, errors.New("lease needs a database and a logger")
	}
	if c.TTL == 0 {
		c.TTL = defaultTTL
	}
	if c.Poll == 0 {
		c.Poll = min(c.TTL/4, maxPoll)
	}
	l := &Lease{c: c, db: db, log: log.With(keyLease, c.Name), poke: make(chan struct{}, 1), metrics: newMetrics(c.Name)}
	l.enter(Following)
	return l, nil
}

// Poke makes a follower look at once, for a caller that heard of a leader's end
// by another way. It never blocks.
func (l *Lease) Poke() {
	select {
	case l.poke <- struct{}{}:
	default:
	}
}

// Run is Serve for an office that only executes.
func (l *Lease) Run(ctx context.Context, lead func(ctx context.Context, term int64) error) error {
	return l.Serve(ctx, Office{Execute: lead})
}

// Serve competes for the lease until ctx ends, and then returns nil. Each time that it wins it
// takes the office through a term. When that is over the lease is given back at once, the
// followers are told, and, unless ctx has ended, it competes again.
//
// The lease is kept while the office finishes its work after the end of ctx. A database
// that is away is waited for; an error of the office is logged and the office entered again,
// with growing pauses, if this replica wins again.
func (l *Lease) Serve(ctx context.Context, office Office) error {
	if l.c.Hints != nil {
		stop, err := l.c.Hints.Listen(l.c.Name, l.told)
		if err != nil {
			return fmt.Errorf("listen to lease hints: %w", err)
		}
		defer stop()
	}
	outage, failure := l.pauses(), l.pauses()
	out := false
	for first := true; ctx.Err() == nil; {
		sent := time.Now()
		term, err := l.acquire(ctx, first)
		switch {
		case err != nil:
			if !out && ctx.Err() == nil {
				l.log.WarnContext(ctx, "lease cannot be read, trying again", logs.Error, err)
				out = true
			}
			l.wait(ctx, outage.NextBackOff())
			continue
		case out:
			l.log.InfoContext(ctx, "lease can be read again")
			out = false
			outage.Reset()
		}
		first = false
		if term == 0 {
			// Between three quarters and the whole, so that followers do not march in step.
			l.wait(ctx, l.c.Poll*3/4+rand.N(l.c.Poll/4+1))
			continue
		}
		if err := l.leadOnce(ctx, term, sent.Add(l.c.TTL), office); err != nil {
			if time.Since(sent) > l.c.TTL { // it worked for a while
				failure.Reset()
			}
			l.wait(ctx, failure.NextBackOff())
		} else {
			failure.Reset()
			l.wait(ctx, l.c.Poll) // let another replica have its turn; and lead may return at once each time
		}
	}
	return nil
}

// told is what a hint comes to: our own is none.
func (l *Lease) told(from string) {
	if from != l.c.Holder {
		l.Poke()
	}
}

func (l *Lease) pauses() *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval = min(100*time.Millisecond, l.c.Poll)
	b.MaxInterval = l.c.TTL
	return b
}

// wait returns after d, on a poke, or when ctx ends.
func (l *Lease) wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-l.poke:
	case <-timer.C:
	}
}
