// Package sender takes mails from the ledger's queue and hands them to the mail server.
//
// It promises that each attempt is written down before it begins and after it
// ended; that a mail of which it is not certain that the server has not taken it
// is not sent again by itself; that an order's mails are handed over in version
// order, by any number of replicas; and that a mail server that is down, or a
// wrong configuration, uses up no attempt. It does not promise that a mail that the
// server took reaches anybody.
//
// How a mail goes: a dispatcher sees that something is due, waits for the budget and lets
// a free worker go. The worker makes sure of its connection first, so that a server
// that is down is noticed before anything begins; then it claims the mail, sends it and
// has the result written. Claims and results of all workers share transactions, which one
// goroutine, the clerk, makes.
//
// A crash leaves at most one mail per worker in state sending. Once the claim's
// time is over any replica makes it unknown, and a person decides. A replica that
// was only frozen still writes what really became of the mail.
package sender

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pillarbox/pillarbox/services/mailer/internal/ledger"
	"github.com/pillarbox/pillarbox/services/mailer/internal/letter"
	"github.com/pillarbox/pillarbox/services/mailer/internal/smtp"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/events"
	"github.com/pillarbox/pillarbox/shared/logs"
	"github.com/pillarbox/pillarbox/shared/wait"
)

// Config of New; zero durations and numbers mean the defaults.
type Config struct {
	SMTP          smtp.Config
	From          string        // our own address: its refusal is no fault of a mail
	Workers       int           // mails at a time, each on a connection of its own. Default 10
	Backoff       time.Duration // before the second attempt; doubles with jitter. Default 1 s
	MaxBackoff    time.Duration // default 1 h
	GiveUp        time.Duration // time of attempts after which a deferred mail is refused. Default 24 h
	Drain         time.Duration // deadline for mails under way at stop. Default 8 s
	Poll          time.Duration // between two looks at the queue without a hint. Default 1 s
	Idle          time.Duration // a connection unused for so long is closed. Default 20 s
	PerConnection int           // mails after which a connection is closed. Default 100
	MaxWaiting    int           // mails in the queue before no more are taken in. Default 10,000
	MaxBytes      int64         // the same for the bytes of their events. Default 1 GiB
}

func (c Config) withDefaults() Config {
	c.Workers = cmp.Or(c.Workers, 10)
	c.Backoff = cmp.Or(c.Backoff, time.Second)
	c.MaxBackoff = cmp.Or(c.MaxBackoff, time.Hour)
	c.GiveUp = cmp.Or(c.GiveUp, 24*time.Hour)
	c.Drain = cmp.Or(c.Drain, 8*time.Second)
	c.Poll = cmp.Or(c.Poll, time.Second)
	c.Idle = cmp.Or(c.Idle, 20*time.Second)
	c.PerConnection = cmp.Or(c.PerConnection, 100)
	c.MaxWaiting = cmp.Or(c.MaxWaiting, 10_000)
	c.MaxBytes = cmp.Or(c.MaxBytes, 1<<30)
	return c
}

// Budget is the rate at which the mail server may be given mails, in all replicas together (pace.Pacer).
type Budget interface {
	Wait(ctx context.Context, n int) error
}

// Deps of a Sender.
type Deps struct {
	DB      *database.DB
	Render  func(events.Event) (letter.Letter, error)
	Budget  Budget // nil: unlimited
	Metrics *Metrics
	Log     *slog.Logger
}

// Sender is one replica's part of the work.
type Sender struct {
	Config
	Deps
	clerk *clerk

	wake    chan struct{}      // something may be due
	permits chan struct{}      // one mail may be claimed; unbuffered: only a free worker takes it
	open    atomic.Int64       // permits given and not used or returned yet
	spare   chan *smtp.Session // a connection that somebody opened and needs no more

	down    atomic.Pointer[outage]
	downNow chan struct{}
	queue   atomic.Pointer[ledger.Queue] // as last seen
}

type outage struct{ err error }

// New does no I/O.
func New(c Config, d Deps) (*Sender, error) {
	if d.DB == nil || d.Render == nil || d.Metrics == nil || d.Log == nil {
		return nil, errors.New("sender: database, renderer, metrics and log are required")
	}
	s := &Sender{
		Config: c.withDefaults(), Deps: d,
		wake: make(chan struct{}, 1), permits: make(chan struct{}), spare: make(chan *smtp.Session, 1), downNow: make(chan struct{}, 1),
	}
	// A claim outlives any attempt under it; the attempt measures from before the claim.
	s.clerk = newClerk(d.DB, s.SMTP.Server.WholeTimeout()+s.SMTP.Server.Timeout+2*time.Second, d.Log)
	s.queue.Store(&ledger.Queue{})
	return s, nil
}

// Wake tells that something may be due.
func (s *Sender) Wake() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Usable reports why no more mails should be queued now, or nil.
func (s *Sender) Usable() error {
	if down := s.down.Load(); down != nil {
		return down.err
	}
	if q := s.queue.Load(); q.Waiting >= s.MaxWaiting || q.Bytes >= s.MaxBytes {
		return fmt.Errorf("%d mails with %d bytes wait for the mail server already", q.Waiting, q.Bytes)
	}
	return nil
}

// Run sends until ctx ends; mails under way then have the drain time. It returns after its last goroutine.
func (s *Sender) Run(ctx context.Context) {
	// Work under way outlives ctx, and its results outlive it.
	work, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(s.Drain, cut) })()
	writing, stopWriting := context.WithCancel(context.WithoutCancel(ctx))
	var clerk, workers, helpers sync.WaitGroup
	clerk.Go(func() { s.clerk.run(writing, work) })
	for range s.Workers {
		workers.Go(func() { (&worker{Sender: s}).run(ctx, work) })
	}
	helpers.Go(func() { s.dispatch(ctx) })
	helpers.Go(func() { s.watch(ctx) })
	helpers.Go(func() { s.keep(ctx) })
	workers.Wait()
	stopWriting()
	clerk.Wait()
	helpers.Wait()
	select {
	case session := <-s.spare:
		session.Quit()
	default:
	}
}

// dispatch gives permits for as many mails as are due.
func (s *Sender) dispatch(ctx context.Context) {
	tick := time.NewTicker(s.Poll)
	defer tick.Stop()
	failing := false
	for {
		n := 0
		if s.down.Load() == nil {
			due, err := ledger.Due(ctx, s.DB, s.Workers)
			if err != nil && !failing && ctx.Err() == nil {
				s.Log.WarnContext(ctx, "no mail is sent while the queue cannot be read", logs.Error, err)
			}
			failing = err != nil
			n = due - int(s.open.Load())
		}
		if n > 0 {
			if !s.permit(ctx) {
				return
			}
			continue // what is due may have changed meanwhile
		}
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		case <-tick.C:
		}
	}
}

// permit gives one permit, once the budget and a worker are free; false when ctx ended.
func (s *Sender) permit(ctx context.Context) bool {
	if s.Budget != nil {
		if err := s.Budget.Wait(ctx, 1); err != nil {
			// The rate allows none for long, or its database is away. It may be otherwise at the next look.
			return wait.For(ctx, s.Poll)
		}
	}
	s.open.Add(1)
	select {
	case s.permits <- struct{}{}:
		return true
	case <-ctx.Done():
		s.open.Add(-1)
		return false
	}
}

// keep looks at the queue for the metrics and for attempts that nobody ended.
func (s *Sender) keep(ctx context.Context) {
	failing := false
	for {
		begun := time.Now()
		err := s.look(ctx)
		if err != nil && !failing && ctx.Err() == nil {
			s.Log.WarnContext(ctx, "the queue of mails cannot be looked at", logs.Error, err)
		}
		failing = err != nil
		// Counting a long queue must not become the main work.
		if !wait.For(ctx, max(s.Poll, 20*time.Since(begun))) {
			return
		}
	}
}

func (s *Sender) look(ctx context.Context) error {
	for {
		const bite = 100
		lost, err := ledger.MarkLost(ctx, s.DB, bite)
		if err != nil {
			return err
		}
		for _, d := range lost {
			s.Metrics.results.WithLabelValues(resultLost).Inc()
			s.Log.ErrorContext(ctx, "nobody knows whether a mail was taken: its attempt was begun and never ended",
				"delivery", d.ID, logs.EventID, d.EventID, logs.Key, d.OrderID, logs.Version, d.Version)
		}
		if len(lost) < bite {
			break
		}
	}
	q, err := ledger.Look(ctx, s.DB)
	if err != nil {
		return err
	}
	s.queue.Store(&q)
	s.Metrics.look(q)
	return nil
}
