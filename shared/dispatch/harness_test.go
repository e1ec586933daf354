package dispatch_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/pillarbox/pillarbox/shared/dispatch"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errBoom = errors.New("boom")

// message is number n of those with its key.
type message struct {
	n   int
	key string
}

func keyOf(m message) string { return m.key }

// witness watches handlers: what began, in which order, and how many at once.
type witness struct {
	fails func(worker string, m message) bool // nil: never

	mu   sync.Mutex // guards the rest
	seen []sighting // in the order in which they began
	now  map[string]int
	most map[string]int // at once, by worker, by "key" + key and in "all"
}

type sighting struct {
	worker string
	message
}

func newWitness() *witness { return &witness{now: map[string]int{}, most: map[string]int{}} }

func (w *witness) handler(worker string) dispatch.Handler[message] {
	return func(_ context.Context, m message) error {
		at := []string{"all", "worker " + worker, "key " + m.key}
		w.mu.Lock()
		w.seen = append(w.seen, sighting{worker, m})
		for _, name := range at {
			w.now[name]++
			w.most[name] = max(w.most[name], w.now[name])
		}
		w.mu.Unlock()
		for range m.n % 3 {
			runtime.Gosched() // so that handlings overlap where they may
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, name := range at {
			w.now[name]--
		}
		if w.fails != nil && w.fails(worker, m) {
			return fmt.Errorf("%s of %d: %w", worker, m.n, errBoom)
		}
		return nil
	}
}

// counts are the handlings of each message.
func (w *witness) counts() map[message]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	counts := map[message]int{}
	for _, s := range w.seen {
		counts[s.message]++
	}
	return counts
}

// by are the handlings of each worker.
func (w *witness) by() map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	counts := map[string]int{}
	for _, s := range w.seen {
		counts[s.worker]++
	}
	return counts
}

// drawMessages draws some messages with a few keys.
func drawMessages(t *rapid.T) []message {
	keys := rapid.SliceOfN(rapid.IntRange(0, 6), 0, 60).Draw(t, "keys")
	all := make([]message, len(keys))
	for i, key := range keys {
		all[i] = message{i, fmt.Sprint("k", key)}
	}
	return all
}

// errorAt is the error of a message in a batch's result.
func errorAt(errs []error, i int) error {
	if errs == nil {
		return nil
	}
	return errs[i]
}
