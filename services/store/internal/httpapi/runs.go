package httpapi

import (
	"bytes"
	"context"
	"errors"
	"sync"

	"github.com/pillarbox/pillarbox/services/store/internal/intake"
	"github.com/pillarbox/pillarbox/services/store/internal/orderdb"
)

// errInProgress: a request with this key is under way, and another one waits for it already.
var errInProgress = errors.New("a request with this idempotency key is under way")

// runs lets one request per idempotency key through at a time, with one more waiting for its turn.
// The rest is turned away at once: a client that repeats in a hurry must not pile up. It is
// a courtesy within one process; the database's unique key is what decides.
//
//	free ──join──► running ──join──► running + one waiting ──join──► errInProgress
//	  ▲──── leave ────┘  ▲──── leave: the waiting one runs ────┘
type runs struct {
	mu    sync.Mutex // guards byKey and every run's turn
	byKey map[orderdb.Key]*run
}

type run struct {
	fingerprint []byte
	turn        chan struct{} // of the one that waits, closed when its turn has come; nil when none waits
}

func newRuns() *runs { return &runs{byKey: map[orderdb.Key]*run{}} }

// join returns when the request may run; leave must then be called once.
func (s *runs) join(ctx context.Context, key orderdb.Key, fingerprint []byte) (leave func(), err error) {
	s.mu.Lock()
	r, running := s.byKey[key]
	switch {
	case !running:
		r = &run{fingerprint: fingerprint}
		s.byKey[key] = r
		s.mu.Unlock()
		return func() { s.leave(key, r) }, nil
	case !bytes.Equal(r.fingerprint, fingerprint):
		s.mu.Unlock()
		return nil, intake.ErrKeyReused
	case r.turn != nil:
		s.mu.Unlock()
		return nil, errInProgress
	}
	turn := make(chan struct{})
	r.turn = turn
	s.mu.Unlock()
	select {
	case <-turn:
		return func() { s.leave(key, r) }, nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	stillWaiting := r.turn == turn
	if stillWaiting {
		r.turn = nil
	}
	s.mu.Unlock()
	if !stillWaiting { // the turn came at the same moment
		s.leave(key, r)
	}
	return nil, errInProgress
}

func (s *runs) leave(key orderdb.Key, r *run) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.turn == nil {
		delete(s.byKey, key)
		return
	}
	close(r.turn)
	r.turn = nil
}
