// Package coalesce spares a process the work of requests that repeat one under
// way: of those with one key one is processed, one more waits for its result,
// and further ones are declined at once, so that a client that repeats in a
// hurry piles nothing up.
//
// The states of a key; the words above are requests that arrive:
//
//	        first            second           third
//	┌► init ──────► process ───────► block ─────────► decline ◄─┐ further
//	│               │ ▲   ▲           │ │              │ │  └───┘ ones
//	│   head left   │ │   └───────────┘ │              │ │
//	├───────────────┘ │  waiter gave up │              │ │
//	│                 │  or head died   │              │ │
//	│                 └─────────────────┼──────────────┘ │
//	│              head is done         │                │
//	└───────────────────────────────────┴────────────────┘
//
// The head is the one that is processed. It is done when its work returned without
// an error, and the one that waits has the result too. It died when its work returned
// an error, panicked or ended its goroutine: that leaves no result for others, so the
// one that waits becomes the head. It waits to a deadline.
//
// It promises that at most one work per key runs and at most one waits, and that
// memory is bounded. It does not promise that work runs once: it remembers nothing
// after the head has left, and other processes have heads of their own. That is for
// a unique key in the database to decide. It starts no goroutine.
//
// A crash leaves nothing behind: all it knows are requests that die with it.
package coalesce

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Why a request was neither processed nor given another's result.
var (
	// ErrDeclined: one request with this key is processed and another one waits already.
	ErrDeclined = errors.New("declined: a request with this key is under way and another waits")
	// ErrGaveUp: the wait for the request under way took too long, or the caller's context ended.
	ErrGaveUp = errors.New("gave up waiting for the request with this key")
	// ErrDiffers: the request under way with this key is not the same request.
	ErrDiffers = errors.New("the request under way with this key is another one")
	// ErrFull: too many keys are under way.
	ErrFull = errors.New("too many keys are under way")

	errTooLong = errors.New("its deadline passed")
)

// Config of a Group; zero values mean the defaults.
type Config struct {
	Name string        // of the group in metrics, e.g. "idempotency"
	Wait time.Duration // longest wait for the request under way. Default 10 s
	Keys int           // most keys under way at once. Default 10,000
}

// State of a key; the package comment draws how they follow each other.
type State int

const (
	Init    State = iota // no request
	Process              // one is processed
	Block                // and another one waits
	Decline              // and others were declined
)

// String is the state's name.
func (s State) String() string { return [...]string{"init", "process", "block", "decline"}[s] }

// Group coalesces requests with keys K and results V. A result is handed to two
// callers: neither may change what it points to.
type Group[K comparable, V any] struct {
	config Config

	mu    sync.Mutex // guards byKey, each flight in it and stats
	byKey map[K]*flight[V]
	stats Stats
}

// flight is what happens to one key from its first request to its last.
type flight[V any] struct {
	fingerprint string
	waiter      *waiter[V] // nil when none waits
	declining   bool       // the one that waits has seen others declined
	repeats     Repeats    // the most that happened
}

// waiter is told by the closing of told: settled says whether there is a result
// or the head died, and the waiter is head now.
type waiter[V any] struct {
	told    chan struct{}
	settled bool
	value   V
}

// New checks c.
func New[K comparable, V any](c Config) (*Group[K, V], error) {
	if c.Wait < 0 || c.Keys < 0 {
		return nil, errors.New("coalesce: wait and keys must not be negative")
	}
	if c.Wait == 0 {
		c.Wait = 10 * time.Second
	}
	if c.Keys == 0 {
		c.Keys = 10_000
	}
	return &Group[K, V]{config: c, byKey: map[K]*flight[V]{}}, nil
}

// Do returns what work returned: called here, or by the head (then shared is
// true). Requests with one key are the same request when their fingerprints are
// equal. work is called in this goroutine, with ctx, at most once.
func (g *Group[K, V]) Do(ctx context.Context, key K, fingerprint string, work func(context.Context) (V, error)) (
	v V, shared bool, err error,
) {
	f, w, err := g.arrive(key, fingerprint)
	if err != nil {
		return v, false, err
	}
	if w != nil {
		if v, shared, err = g.wait(ctx, key, f, w); shared || err != nil {
			return v, shared, err
		}
	}
	done := false
	defer func() { g.leave(key, f, v, done) }() // also when work panics
	v, err = work(ctx)
	done = err == nil
	return v, false, err
}

// State is the state of key now.
func (g *Group[K, V]) State(key K) State {
	g.mu.Lock()
	defer g.mu.Unlock()
	f := g.byKey[key]
	switch {
	case f == nil:
		return Init
	case f.waiter == nil:
		return Process
	case f.declining:
		return Decline
	}
	return Block
}

// arrive makes the request the head (w is nil) or the one that waits.
func (g *Group[K, V]) arrive(key K, fingerprint string) (f *flight[V], w *waiter[V], err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f = g.byKey[key]
	switch {
	case f == nil && len(g.byKey) >= g.config.Keys:
		g.stats.Full++
		return nil, nil, ErrFull
	case f == nil:
		f = &flight[V]{fingerprint: fingerprint}
		g.byKey[key] = f
		g.stats.Processed++
		return f, nil, nil
	case f.fingerprint != fingerprint:
		g.stats.Differed++
		return nil, nil, ErrDiffers
	case f.waiter != nil:
		f.declining, f.repeats = true, High
		g.stats.Declined++
		return nil, nil, ErrDeclined
	}
	f.waiter, f.repeats = &waiter[V]{told: make(chan struct{})}, max(f.repeats, Sparse)
	return f, f.waiter, nil
}

// wait returns the head's result, or neither result nor error when the head died
// and the caller is head now.
func (g *Group[K, V]) wait(ctx context.Context, key K, f *flight[V], w *waiter[V]) (v V, shared bool, err error) {
	timer := time.NewTimer(g.config.Wait)
	defer timer.Stop()
	var cause error
	select {
	case <-w.told:
	case <-timer.C:
		cause = errTooLong
	case <-ctx.Done():
		cause = context.Cause(ctx)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case f.waiter == w: // not told
		f.waiter, f.declining = nil, false
	case w.settled: // maybe at the moment of giving up: a result is a result
		g.stats.Shared++
		return w.value, true, nil
	case cause == nil:
		g.stats.TookOver++
		return v, false, nil
	default: // head since a moment ago, with no time left: the next one's turn
		g.passOn(key, f)
	}
	g.stats.GaveUp++
	return v, false, fmt.Errorf("%w: %w", ErrGaveUp, cause)
}

// leave ends the head's work: done with a result, or dead.
func (g *Group[K, V]) leave(key K, f *flight[V], v V, done bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if w := f.waiter; done && w != nil {
		w.value, w.settled = v, true
		f.waiter = nil
		close(w.told)
		g.end(key, f)
		return
	}
	g.passOn(key, f)
}

// passOn makes the one that waits the head, or ends the flight. The caller holds mu.
func (g *Group[K, V]) passOn(key K, f *flight[V]) {
	if f.waiter == nil {
		g.end(key, f)
		return
	}
	close(f.waiter.told)
	f.waiter, f.declining = nil, false
}

func (g *Group[K, V]) end(key K, f *flight[V]) {
	delete(g.byKey, key)
	g.stats.Keys[f.repeats]++
}
