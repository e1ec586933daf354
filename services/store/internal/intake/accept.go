package intake

import (
	"sync"
	"time"

	"github.com/pillarbox/pillarbox/services/store/internal/order"
)

// Accept takes a new order into memory and returns its id before it is stored (ModeAsync). size is roughly
// what it takes in memory. release is called once, when the order is no longer in memory; not at all when
// Accept returns an error.
func (in *Intake) Accept(p order.Placement, t Trace, size int, release func()) (id string, err error) {
	defer func() {
		if err != nil {
			in.metrics.refuse(err, 1)
		}
	}()
	j, err := newPlacing(p, nil, t)
	if err != nil {
		return "", err
	}
	// What could not be published must be refused now: later nobody listens. No time is longer as text than this one.
	if _, err := in.event(p.Order(j.orderID, time.Date(2000, 1, 1, 0, 0, 0, 999_999_000, time.UTC)), j); err != nil {
		return "", err
	}
	if err := in.deps.Admit(); err != nil {
		return "", err
	}
	j.size, j.release = size, release
	if err := in.shelf.put(j); err != nil {
		return "", err
	}
	in.metrics.accepted.Inc()
	return j.orderID, nil
}

// shelf holds accepted orders until they are stored: at most twice as many as are flushed at
// once, so that one half fills while the other is written.
//
//	closed ──open──► put … take … done ──close──► take, done
type shelf struct {
	count   int
	ripe    chan struct{} // count orders wait
	closing chan struct{}
	mu      sync.Mutex // guards what follows
	opened  bool
	waiting []*job
	held    int // waiting, or taken and not done
}

func newShelf(count int) *shelf {
	return &shelf{count: count, ripe: make(chan struct{}, 1), closing: make(chan struct{})}
}

func (s *shelf) open() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opened = true
}

// close refuses what comes from now on. Only the one that opened it may close it, once.
func (s *shelf) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.opened {
		s.opened = false
		close(s.closing)
	}
}

func (s *shelf) put(j *job) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.opened {
		return ErrStopping
	}
	if s.held >= 2*s.count {
		return ErrBusy
	}
	s.held++
	s.waiting = append(s.waiting, j)
	if len(s.waiting) >= s.count {
		select {
		case s.ripe <- struct{}{}:
		default: // it knows
		}
	}
	return nil
}

// take empties the shelf. What it returns counts as held until done.
func (s *shelf) take() []*job {
	s.mu.Lock()
	defer s.mu.Unlock()
	jobs := s.waiting
	s.waiting = nil
	return jobs
}

// done gives the job's memory back.
func (s *shelf) done(j *job) {
	j.release()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held--
}

func (s *shelf) full() bool { return int(s.size()) >= 2*s.count }

func (s *shelf) size() float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return float64(s.held)
}
