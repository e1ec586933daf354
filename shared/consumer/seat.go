package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/lease"
	"github.com/pillarbox/pillarbox/shared/logs"
)

// Mode says which replicas of a service consume.
type Mode string

const (
	// ModeGroup: all of them, each takes what it can.
	ModeGroup Mode = "group"
	// ModeSingle: one at a time, one group after another. It is the holder of the service's lease; the
	// others stand by. Each effect's transaction reads the term, so what a leader of the past has
	// in hand is refused, counted as a conflict and given back.
	ModeSingle Mode = "single"
)

// Valid reports whether there is such a mode.
func (m Mode) Valid() bool { return m == ModeGroup || m == ModeSingle }

// lookTimeout bounds the look whether another replica leads: the database may be away.
const lookTimeout = 2 * time.Second

// seat is a replica's part in mode single; nil in mode group.
//
//	stands by ──term begins──▶ leads: pulls ──stop, loss or a refused write──▶ finishes the group in hand ──▶ stands by
type seat struct {
	lease *lease.Lease
	name  string
	db    *database.DB
	pause *pause

	term    atomic.Int64  // that this replica leads; 0: it stands by
	refused chan int64    // capacity 1: the term under which a write was refused
	left    chan struct{} // closed when the seat is given up for good

	work  sync.Mutex // held while a group, or a sweep, is under way
	under int64      // the term in which it began; guarded by work
}

func newSeat(c Config, d Deps, p *pause) (*seat, error) {
	l, err := lease.New(lease.Config{Name: c.Name, Holder: lease.HolderName(), TTL: c.Lease, Hints: d.Hints}, d.DB, d.Log)
	if err != nil {
		return nil, err
	}
	if d.Registry != nil {
		if err := d.Registry.Register(l); err != nil {
			return nil, fmt.Errorf("register lease metrics: %w", err)
		}
	}
	return &seat{
		lease: l, name: c.Name, db: d.DB, pause: p,
		refused: make(chan int64, 1), left: make(chan struct{}),
	}, nil
}

// standsBy reports that another replica is to do the work.
func (s *seat) standsBy() bool { return s != nil && s.term.Load() == 0 }

// serve competes for the seat until ctx ends; then it hands over.
func (s *seat) serve(ctx context.Context) {
	defer close(s.left)
	err := s.lease.Serve(ctx, lease.Office{Execute: s.lead, HandOver: s.handOver})
	if err != nil && ctx.Err() == nil {
		s.pause.log.ErrorContext(ctx, "this replica stands by for good", logs.Error, err)
	}
}

// await returns when the seat is given up; at once in mode group.
func (s *seat) await() {
	if s != nil {
		<-s.left
	}
}

func (s *seat) lead(ctx context.Context, term int64) error {
	s.term.Store(term)
	s.pause.standby(false)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case over := <-s.refused:
			if over == term {
				return lease.ErrLost
			}
		}
	}
}

// handOver gives back what is buffered and waits for the group in hand, which the consumer's timeout, and at
// a stop its drain, bound.
func (s *seat) handOver(context.Context, int64) error {
	s.term.Store(0)
	s.pause.standby(true)
	s.work.Lock()
	defer s.work.Unlock()
	return nil
}

// begin is called before a group, or a sweep, and what it returns after it: there is one at a time.
func (s *seat) begin() (end func()) {
	if s == nil {
		return func() {}
	}
	s.work.Lock()
	s.under = s.term.Load()
	return s.work.Unlock
}

// check fails with lease.ErrLost when another replica leads; else none can begin before the commit.
func (s *seat) check(ctx context.Context, tx *database.Tx) error {
	if s == nil {
		return nil
	}
	return lease.Check(ctx, tx, s.name, s.under)
}

// overtaken reports that a write failed since another replica leads, or may have failed and another one leads
// by now. Either way what it was about is no longer ours.
func (s *seat) overtaken(ctx context.Context, err error) bool {
	if s == nil || err == nil {
		return false
	}
	if errors.Is(err, database.ErrCommitUnknown) {
		ctx, cancel := context.WithTimeout(ctx, lookTimeout)
		defer cancel()
		err = s.db.Tx(ctx, s.check)
	}
	if !errors.Is(err, lease.ErrLost) {
		return false
	}
	s.term.CompareAndSwap(s.under, 0) // nothing more begins
	select {
	case s.refused <- s.under:
	default: // lead has not read the last word yet, and ends with it
	}
	return true
}
