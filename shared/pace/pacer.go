package pace

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/pillarbox/pillarbox/shared/database"
)

var (
	// ErrLate: no share comes before the context's deadline.
	ErrLate = errors.New("no share before the deadline")
	// ErrClosed: the Pacer was closed, and the caller would have had to wait.
	ErrClosed = errors.New("no share without waiting, and nobody waits any more")
	// ErrSlow: the database's answers come when the shares are void already.
	ErrSlow = errors.New("the database answers more slowly than the burst allows for")
	// ErrTooMany: so many events never fit into the burst at once.
	ErrTooMany = errors.New("more events than can pass at once")
)

// retry is how long a caller without a deadline waits while the queue is longer than maxAhead.
const retry = 200 * time.Millisecond

// Pacer is one replica's part of a budget.
type Pacer struct {
	config  Config
	law     law
	db      *database.DB
	metrics *metrics

	now         func() time.Time
	databaseNow func() string // SQL expression

	closing sync.Once
	closed  chan struct{}

	// turn has one caller at a time, in the order in which they came: who needs more
	// events would otherwise be overtaken for ever. Its holder owns what follows.
	turn   chan struct{}
	held   shares
	chunk  int       // events to lease when fewer are asked for
	asked  time.Time // when the last lease was asked for
	wasted bool      // since then events became void
}

// New checks c; it does no I/O. A Pacer without a rate needs no database.
func New(c Config, db *database.DB) (*Pacer, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	p := &Pacer{
		config: c, db: db, metrics: newMetrics(c.Name), now: time.Now,
		closed: make(chan struct{}), turn: make(chan struct{}, 1), chunk: 1,
	}
	if c.Rate == 0 {
		return p, nil
	}
	if db == nil {
		return nil, errors.New("pace: a rate needs a database")
	}
	p.law, p.databaseNow = c.law(), db.Dialect().Now
	return p, nil
}

// Limited reports whether there is a rate.
func (p *Pacer) Limited() bool { return p.config.Rate != 0 }

// Most is the largest number of events that Wait takes: at least half the burst.
func (p *Pacer) Most() int {
	if !p.Limited() {
		return math.MaxInt
	}
	return p.law.most
}

// Close ends waiting: from now on Wait passes only what need not wait, and those who
// wait get ErrClosed. It may be called more than once.
func (p *Pacer) Close() { p.closing.Do(func() { close(p.closed) }) }

// Wait returns nil when n events may pass now, all at once. Callers of one replica
// pass in the order in which they came. An error means that none passed: the
// context's, ErrLate (at once), ErrClosed, ErrSlow, ErrTooMany, or the database's.
func (p *Pacer) Wait(ctx context.Context, n int) error {
	if n < 0 || n > p.Most() {
		return fmt.Errorf("%w: %d of at most %d", ErrTooMany, n, p.Most())
	}
	if err := ctx.Err(); err != nil {
		return ended(ctx)
	}
	if n == 0 || !p.Limited() {
		p.metrics.passed.Add(float64(n))
		return nil
	}
	start := p.now()
	p.metrics.waiting.Inc()
	defer p.metrics.waiting.Dec()
	select {
	case p.turn <- struct{}{}:
	case <-ctx.Done():
		return ended(ctx)
	}
	defer func() { <-p.turn }()
	for {
		wait, err := p.step(ctx, n)
		switch {
		case err != nil && ctx.Err() != nil: // in the middle of a statement
			return ended(ctx)
		case err != nil:
			return err
		}
		if wait == 0 {
			p.metrics.passed.Add(float64(n))
			p.metrics.wait.Observe(p.now().Sub(start).Seconds())
			return nil
		}
		if err := p.pause(ctx, wait); err != nil {
			return err
		}
	}
}

func ended(ctx context.Context) error { return fmt.Errorf("wait for a share: %w", context.Cause(ctx)) }

func (p *Pacer) pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ended(ctx)
	case <-p.closed:
		return ErrClosed
	}
}

// step spends n events and returns 0, or says how long to wait before the next step.
// The caller has the turn.
func (p *Pacer) step(ctx context.Context, n int) (wait time.Duration, err error) {
	for range conflictTries {
		now := p.now()
		p.waste(p.held.expire(now))
		if at, ok := p.held.ready(now, n); ok {
			if at.Equal(now) {
				p.held.spend(now, n)
				return 0, nil
			}
			return p.until(ctx, now, at)
		}
		err := p.lease(ctx, n)
		switch {
		case err == nil:
		case !errors.Is(err, errNoRoom):
			return 0, err
		case p.isClosed():
			return 0, ErrClosed
		case ahead(ctx, now) < maxAhead:
			return 0, ErrLate
		default:
			return retry/2 + rand.N(retry), nil
		}
	}
	return 0, ErrSlow
}

// until is the time to wait for a share that is held already.
func (p *Pacer) until(ctx context.Context, now, at time.Time) (time.Duration, error) {
	switch wait := at.Sub(now); {
	case p.isClosed():
		return 0, ErrClosed
	case wait > ahead(ctx, now):
		return 0, ErrLate
	default:
		return max(wait, 1), nil
	}
}

// ahead is how far ahead a booking is of use to the caller.
func ahead(ctx context.Context, now time.Time) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return max(0, min(maxAhead, deadline.Sub(now)))
	}
	return maxAhead
}

// lease books n events, and more when the last ones were spent soon and wholly.
func (p *Pacer) lease(ctx context.Context, n int) error {
	sent := p.now()
	switch {
	case p.wasted:
		p.chunk = max(1, p.chunk/2)
	case sent.Sub(p.asked) < time.Duration(p.law.validity)*time.Microsecond:
		p.chunk = min(2*p.chunk, p.law.chunk)
	}
	p.asked, p.wasted = sent, false
	m, far := max(n, p.chunk), ahead(ctx, sent)
	if p.isClosed() {
		m, far = n, 0
	}
	b, err := p.book(ctx, m, n, far)
	if err != nil {
		return err
	}
	p.metrics.leases.Inc()
	p.metrics.leased.Add(float64(m))
	for _, h := range p.law.split(b, m, n, sent, p.now()) {
		p.waste(p.held.add(h))
	}
	return nil
}

func (p *Pacer) waste(n int) {
	if n > 0 {
		p.wasted = true
		p.metrics.void.Add(float64(n))
	}
}

func (p *Pacer) isClosed() bool {
	select {
	case <-p.closed:
		return true
	default:
		return false
	}
}
