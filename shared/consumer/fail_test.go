package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pillarbox/pillarbox/shared/consumer"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
	"github.com/stretchr/testify/require"
)

var errBroken = errors.New("broken")

// failing fails when a group holds the event, until healed.
type failing struct {
	id     string
	err    error
	tries  atomic.Int64
	healed atomic.Bool
}

func (f *failing) check(_ context.Context, g consumer.Group) error {
	if !has(g.Due, f.id) && !has(g.Duplicates, f.id) || f.healed.Load() {
		return nil
	}
	f.tries.Add(1)
	return f.err
}

// steps are the hooks of an effect in which an event may fail before the commit.
var steps = map[string]func(*staged, *failing){
	"prepare": func(s *staged, f *failing) { s.prepare = f.check },
	"apply":   func(s *staged, f *failing) { s.apply = f.check },
}

// eachStep runs test for both steps on both engines.
func eachStep(t *testing.T, test func(t *testing.T, b *bundle, e *staged, set func(*failing))) {
	for name, hook := range steps {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
				e := &staged{t: t}
				test(t, setup(t, db), e, func(f *failing) { hook(e, f) })
			})
		})
	}
}

func TestTransientFailureHoldsItsOrderOnly(t *testing.T) {
	t.Parallel()
	eachStep(t, func(t *testing.T, b *bundle, e *staged, set func(*failing)) {
		f := &failing{id: eventID("a", 2), err: errBroken}
		set(f)
		b.config.MaxAttempts = 1000
		for v := range 3 {
			b.stream.publish(event("a", v+1), event("b", v+1))
		}
		b.start(e)
		b.eventually(t, func() bool { return b.versions("b") == "1 2 3" && b.versions("a") == "1" }, "the other order")
		b.eventually(t, func() bool { return b.parked("parked") == 1 && b.parked("waiting") == 1 }, "parked and held")
		b.eventually(t, func() bool { return f.tries.Load() > 5 }, "tried again and again")
		require.Equal(t, "1", b.versions("a"))
		b.noLetters(t)
		f.healed.Store(true)
		b.eventually(t, func() bool { return b.versions("a") == "1 2 3" }, "the rest in order")
		b.eventually(t, func() bool { return b.count(`SELECT count(*) FROM parked`) == 0 }, "no row left")
		require.Zero(t, e.open.Load(), "each work was ended")
	})
}

func TestTooManyAttemptsAreADeadLetter(t *testing.T) {
	t.Parallel()
	eachStep(t, func(t *testing.T, b *bundle, e *staged, set func(*failing)) {
		f := &failing{id: eventID("a", 1), err: errBroken}
		set(f)
		b.config.MaxAttempts = 3
		b.stream.publish(event("a", 1), event("a", 2))
		b.start(e)
		b.eventually(t, func() bool { return b.letters() == 1 }, "dead letter")
		require.Equal(t, []string{"event-a-1 3"}, b.text(`SELECT id || ' ' || attempts FROM dead_letters`))
		require.Contains(t, b.text(`SELECT reason FROM dead_letters`)[0], "broken")
		require.Equal(t, 1, b.parked("dead"))
		b.eventually(t, func() bool { return b.parked("waiting") == 1 }, "its order is held")

		f.healed.Store(true)
		b.stream.publish(event("a", 1)) // again from the broker: still dead
		b.eventually(t, func() bool { acked, _, _ := b.stream.counts(); return acked == 3 }, "acknowledged")
		require.Zero(t, b.effects())
		require.Equal(t, 1, b.letters())
	})
}

func TestPermanentFailureIsADeadLetterAtOnce(t *testing.T) {
	t.Parallel()
	eachStep(t, func(t *testing.T, b *bundle, e *staged, set func(*failing)) {
		set(&failing{id: eventID("a", 1), err: consumer.AsPermanent(errBroken)})
		b.stream.publish(event("a", 1), event("b", 1))
		b.start(e)
		b.eventually(t, func() bool { return b.letters() == 1 && b.versions("b") == "1" }, "dead letter")
		require.Equal(t, []string{"1"}, b.text(`SELECT CAST(attempts AS TEXT) FROM dead_letters`))
		require.Equal(t, 1, b.parked("dead"))
	})
}

func TestUnorderedFailures(t *testing.T) {
	t.Parallel()
	eachStep(t, func(t *testing.T, b *bundle, e *staged, set func(*failing)) {
		b.config.Ordered = false
		f := &failing{id: eventID("a", 1), err: errBroken}
		set(f)
		b.config.MaxAttempts = 3
		b.stream.publish(event("a", 1), event("a", 2), event("b", 1))
		b.start(e)
		b.eventually(t, func() bool { return b.letters() == 1 && b.effects() == 2 }, "dead letter, the others done")
		require.Zero(t, b.count(`SELECT count(*) FROM parked`))
		f.healed.Store(true)
		b.stream.publish(event("a", 1))
		b.eventually(t, func() bool { return b.effects() == 3 }, "nothing is held")
	})
}

func TestPanicIsOneFailedAttempt(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"prepare", "apply", "done"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
				b := setup(t, db)
				var panics atomic.Int64
				hook := func(_ context.Context, g consumer.Group) error {
					if has(g.Due, eventID("a", 1)) || has(g.Duplicates, eventID("a", 1)) {
						if panics.Add(1) <= 3 {
							panic("bug")
						}
					}
					return nil
				}
				e := &staged{t: t}
				switch step {
				case "prepare":
					e.prepare = hook
				case "apply":
					e.apply = hook
				case "done":
					e.done = hook
				}
				b.stream.publish(event("a", 1), event("b", 1))
				r := b.start(e)
				b.eventually(t, func() bool { return b.versions("a") == "1" && b.versions("b") == "1" }, "both done")
				b.eventually(t, func() bool { _, ok := e.doneEvents.Load(eventID("a", 1)); return ok }, "finished")
				b.eventually(t, func() bool { return b.count(`SELECT count(*) FROM parked`) == 0 }, "no row left")
				require.Zero(t, r.sub.pauses.Load())
				b.noLetters(t)
			})
		})
	}
}

// TestRetriesDoNotDependOnReplicas: three replicas try a parked event as often as one does.
func TestRetriesDoNotDependOnReplicas(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		b.config.MaxAttempts = 5
		b.config.Backoff = 50 * time.Millisecond
		var mu sync.Mutex
		var at []time.Time
		e := func() *staged {
			return &staged{t: t, prepare: func(_ context.Context, g consumer.Group) error {
				mu.Lock()
				defer mu.Unlock()
				at = append(at, time.Now())
				return errBroken
			}}
		}
		for range 3 {
			b.start(e())
		}
		b.stream.publish(event("a", 1))
		b.eventually(t, func() bool { return b.letters() == 1 }, "dead letter")
		mu.Lock()
		defer mu.Unlock()
		require.Len(t, at, 5)
		for i := 1; i < len(at); i++ {
			require.GreaterOrEqual(t, at[i].Sub(at[i-1]), 35*time.Millisecond, fmt.Sprint("attempt ", i+1))
		}
	})
}

// TestOneLetterPerMessage: what is no event becomes a dead letter with its bytes and does not stop the others.
func TestOneLetterPerMessage(t *testing.T) {
	t.Parallel()
	noise := make([]byte, 900_000)
	for i := range noise {
		noise[i] = byte(i * 7919 >> 3)
	}
	good := string(event("a", 1))
	matrix := map[string][]byte{
		"not JSON":        []byte("hello"),
		"empty":           {},
		"JSON, no event":  []byte(`[1,2,3]`),
		"unknown type":    []byte(replace(good, "order.placed.v1", "order.placed.v9")),
		"no id":           []byte(replace(good, `"id":"a-1"`, `"id":""`)),
		"no version":      []byte(replace(good, `"orderversion":1`, `"orderversion":0`)),
		"bad UTF-8":       append([]byte(good), 0xff),
		"NUL in the id":   []byte(replace(good, `"id":"a-1"`, `"id":"a\u0000b"`)),
		"900 KB of noise": noise,
	}
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		for _, body := range matrix {
			b.stream.publish(body, body) // twice: the copy is the same letter
		}
		b.stream.publish([]byte(good))
		r := b.start(consumer.Apply(record))
		b.eventually(t, func() bool { acked, _, _ := b.stream.counts(); return acked == 2*len(matrix)+1 }, "all acknowledged")
		require.Equal(t, len(matrix), b.letters())
		require.Equal(t, "1", b.versions("a"))
		require.Zero(t, b.count(`SELECT count(*) FROM dead_letters WHERE reason = ''`))
		for name, body := range matrix {
			require.Equal(t, 1, b.count(`SELECT count(*) FROM dead_letters WHERE body = $1`, body), name)
		}
		require.Zero(t, r.sub.pauses.Load())
	})
}
