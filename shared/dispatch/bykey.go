package dispatch

import (
	"context"
	"sync"
)

// ByKey gives all messages of one key to one worker, in order, and those of
// different keys to different workers side by side. Which worker has a key
// follows from its name alone (rendezvous hashing: of all workers the one whose
// name, mixed with the key, gives the highest number), so every process agrees,
// and a worker that comes or goes moves only its own share of the keys.
//
// A key moves when none of its messages is under way: until then its new ones
// follow the old ones, so that no two of a key ever run side by side.
//
// Order holds within a batch and from one call to the next one of the same
// caller. After a failure the later messages of that key in the batch are not
// handled (ErrPredecessor); other keys go on.
type ByKey[T any] struct {
	key func(T) string
	roster[T]
	open map[string]holding[T] // keys with messages under way; guarded by the roster's lock
}

type holding[T any] struct {
	worker   *worker[T]
	messages int
}

// NewByKey returns a strategy without workers.
func NewByKey[T any](key func(T) string) *ByKey[T] {
	return &ByKey[T]{key: key, open: map[string]holding[T]{}}
}

// Join registers a worker. Its share of keys comes to it from all others.
func (k *ByKey[T]) Join(name string, handle Handler[T]) error { return k.join(name, handle) }

// Leave takes a worker off and waits until the messages of the keys that it
// still has are over; its keys then belong to the others. It must not be called
// from the worker itself.
func (k *ByKey[T]) Leave(ctx context.Context, name string) error {
	return k.leave(ctx, name, func(int) {})
}

// WorkerOf names the worker to which a key belongs, or "" when there is none.
func (k *ByKey[T]) WorkerOf(key string) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if w := k.owner(key); w != nil {
		return w.name
	}
	return ""
}

// Workers lists the registered workers in the order in which they joined.
func (k *ByKey[T]) Workers() []Worker {
	k.mu.Lock()
	defer k.mu.Unlock()
	list := make([]Worker, len(k.members))
	for i, w := range k.members {
		list[i] = Worker{Name: w.name, Pending: w.pending, Available: true}
	}
	return list
}

// Handle waits for the worker of the message's key.
func (k *ByKey[T]) Handle(ctx context.Context, message T) error {
	key := k.key(message)
	k.mu.Lock()
	w := k.claim(key)
	k.mu.Unlock()
	if w == nil {
		return ErrNoWorker
	}
	defer func() {
		k.mu.Lock()
		k.release(key)
		k.mu.Unlock()
	}()
	return k.one(ctx, w, message)
}

// HandleBatch spreads the messages by key.
func (k *ByKey[T]) HandleBatch(ctx context.Context, messages []T) []error {
	ctx = apart(ctx, len(messages))
	failed := batchResults{n: len(messages)}
	chains := queues[T]{next: make([]int, len(messages))}
	keys := make([]string, len(messages))
	for i, message := range messages {
		keys[i] = k.key(message)
	}
	k.mu.Lock()
	for i, key := range keys {
		if w := k.claim(key); w != nil {
			chains.add(w, i)
		} else {
			failed.set(i, ErrNoWorker)
		}
	}
	k.mu.Unlock()
	chains.run(func(q queue[T]) {
		var broken map[string]bool // keys of which a message failed
		for i := q.first; i >= 0; i = chains.next[i] {
			err := ErrPredecessor
			if !broken[keys[i]] {
				err = k.one(ctx, q.worker, messages[i])
			}
			if err == nil {
				continue
			}
			failed.set(i, err)
			if broken == nil {
				broken = map[string]bool{}
			}
			broken[keys[i]] = true
		}
		k.mu.Lock()
		defer k.mu.Unlock()
		for i := q.first; i >= 0; i = chains.next[i] {
			k.release(keys[i])
		}
	})
	return failed.errs
}

func (k *ByKey[T]) one(ctx context.Context, w *worker[T], message T) error {
	if err := w.begin(ctx, nil); err != nil {
		return err
	}
	defer w.end()
	return call(ctx, w.handle, message)
}

// claim returns the worker for a message of key, or nil. The caller holds the lock.
func (k *ByKey[T]) claim(key string) *worker[T] {
	h, ok := k.open[key]
	if !ok {
		h.worker = k.owner(key)
	}
	if h.worker == nil {
		return nil
	}
	h.messages++
	h.worker.pending++
	k.open[key] = h
	return h.worker
}

// release ends what claim began. The caller holds the lock.
func (k *ByKey[T]) release(key string) {
	h := k.open[key]
	k.settled(h.worker, 1)
	if h.messages--; h.messages == 0 {
		delete(k.open, key)
	} else {
		k.open[key] = h
	}
}

// owner is the rendezvous. The caller holds the lock.
func (k *ByKey[T]) owner(key string) *worker[T] {
	h := hash(key)
	var best *worker[T]
	var most uint64
	for _, w := range k.members {
		if score := mix(h ^ w.seed); best == nil || score > most {
			best, most = w, score
		}
	}
	return best
}

// hash is FNV-1a, the same in every process.
func hash(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}

// mix spreads similar inputs over all bits (the finalizer of MurmurHash3).
func mix(h uint64) uint64 {
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

// batchResults are the errors of a batch whose messages end in several goroutines.
type batchResults struct {
	n    int
	mu   sync.Mutex // guards errs
	errs results
}

func (r *batchResults) set(i int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.errs.set(i, r.n, err)
}
