package coalesce_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pillarbox/pillarbox/shared/coalesce"
)

const (
	maxWait = time.Minute
	maxKeys = 2 // of three that are tried
)

// machine drives a Group from the outside and says what must come of each step.
// It runs on fake time, so that after each step everybody has come to rest.
type machine struct {
	g    *coalesce.Group[string, int]
	keys map[string]*key
	want coalesce.Stats
	next int // value of the next result
}

// key is the model of one key that is under way.
type key struct {
	fingerprint string
	head        *call
	waiter      *call
	declining   bool
	repeats     coalesce.Repeats
}

// call is one request in a goroutine of its own.
type call struct {
	cancel   context.CancelFunc
	deadline time.Time
	working  bool
	end      chan func() (int, error) // how its work ends
	returned bool
	v        int
	shared   bool
	err      error
}

var errDead = errors.New("dead")

func (m *machine) call(name, fingerprint string) *call {
	ctx, cancel := context.WithCancel(context.Background())
	c := &call{cancel: cancel, deadline: time.Now().Add(maxWait), end: make(chan func() (int, error))}
	go func() {
		defer cancel()
		defer func() {
			_ = recover() // of a work that panics
			c.returned = true
		}()
		c.err = errDead // for a call that does not return
		c.v, c.shared, c.err = m.g.Do(ctx, name, fingerprint, func(context.Context) (int, error) {
			c.working = true
			return (<-c.end)()
		})
	}()
	synctest.Wait()
	return c
}

func (m *machine) arrive(t *rapid.T) {
	name := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "key")
	fingerprint := rapid.SampledFrom([]string{"x", "x", "x", "y"}).Draw(t, "fingerprint")
	k, active := m.keys[name]
	c := m.call(name, fingerprint)
	switch {
	case !active && len(m.keys) == maxKeys:
		m.want.Full++
		c.failed(t, coalesce.ErrFull)
	case !active:
		m.want.Processed++
		m.keys[name] = &key{fingerprint: fingerprint, head: c}
		require.True(t, c.working)
	case fingerprint != k.fingerprint:
		m.want.Differed++
		c.failed(t, coalesce.ErrDiffers)
	case k.waiter != nil:
		m.want.Declined++
		k.declining, k.repeats = true, coalesce.High
		c.failed(t, coalesce.ErrDeclined)
	default:
		k.waiter, k.repeats = c, max(k.repeats, coalesce.Sparse)
		require.False(t, c.working)
		require.False(t, c.returned)
	}
}

func (c *call) failed(t *rapid.T, want error) {
	require.True(t, c.returned)
	require.False(t, c.working, "must not do the work")
	require.ErrorIs(t, c.err, want)
}

// some picks a key for which there is what ok asks for.
func (m *machine) some(t *rapid.T, ok func(*key) bool) (string, *key) {
	var names []string
	for name, k := range m.keys {
		if ok(k) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		t.Skip("no such key")
	}
	slices.Sort(names)
	name := rapid.SampledFrom(names).Draw(t, "key")
	return name, m.keys[name]
}

func anyKey(*key) bool    { return true }
func blocked(k *key) bool { return k.waiter != nil }
func (m *machine) done(t *rapid.T) {
	name, k := m.some(t, anyKey)
	m.next++
	v := m.next
	k.head.end <- func() (int, error) { return v, nil }
	synctest.Wait()
	m.succeeded(t, name, k, v)
	if k.waiter != nil {
		m.shared(t, k.waiter, v)
	}
}

func (m *machine) succeeded(t *rapid.T, name string, k *key, v int) {
	require.True(t, k.head.returned)
	require.NoError(t, k.head.err)
	require.False(t, k.head.shared)
	require.Equal(t, v, k.head.v)
	m.ended(name, k)
}

func (m *machine) shared(t *rapid.T, c *call, v int) {
	m.want.Shared++
	require.True(t, c.returned)
	require.False(t, c.working)
	require.NoError(t, c.err)
	require.True(t, c.shared)
	require.Equal(t, v, c.v)
}

func (m *machine) ended(name string, k *key) {
	delete(m.keys, name)
	m.want.Keys[k.repeats]++
}

// ways for a head to die.
func death(t *rapid.T) func() (int, error) {
	return rapid.SampledFrom([]func() (int, error){
		func() (int, error) { return 7, errDead },
		func() (int, error) { panic("dead") },
		func() (int, error) { runtime.Goexit(); return 0, nil },
	}).Draw(t, "death")
}

func (m *machine) die(t *rapid.T) {
	name, k := m.some(t, anyKey)
	k.head.end <- death(t)
	synctest.Wait()
	require.True(t, k.head.returned)
	require.ErrorIs(t, k.head.err, errDead)
	if k.waiter == nil {
		m.ended(name, k)
		return
	}
	m.tookOver(t, k)
}

func (m *machine) tookOver(t *rapid.T, k *key) {
	require.True(t, k.waiter.working)
	m.want.TookOver++
	k.head, k.waiter, k.declining = k.waiter, nil, false
}

func (m *machine) giveUp(t *rapid.T) {
	_, k := m.some(t, blocked)
	k.waiter.cancel()
	synctest.Wait()
	m.gaveUp(t, k)
}

func (m *machine) gaveUp(t *rapid.T, k *key) {
	m.want.GaveUp++
	k.waiter.failed(t, coalesce.ErrGaveUp)
	k.waiter, k.declining = nil, false
}

// headCancelled: the end of the head's context is for its work to notice.
func (m *machine) headCancelled(t *rapid.T) {
	_, k := m.some(t, anyKey)
	k.head.cancel()
	synctest.Wait()
	require.False(t, k.head.returned)
}

func (m *machine) timePasses(t *rapid.T) {
	<-time.After(rapid.SampledFrom([]time.Duration{time.Second, maxWait / 2, maxWait}).Draw(t, "time"))
	synctest.Wait()
	for _, k := range m.keys {
		if k.waiter != nil && !time.Now().Before(k.waiter.deadline) {
			m.gaveUp(t, k)
		}
	}
}

// race: the head is done, or dies, and the waiter's context ends at the same moment.
func (m *machine) race(t *rapid.T) {
	name, k := m.some(t, blocked)
	end, v := death(t), 0
	dies := rapid.Bool().Draw(t, "dies")
	if !dies {
		m.next++
		v = m.next
		end = func() (int, error) { return v, nil }
	}
	k.waiter.cancel()
	k.head.end <- end
	synctest.Wait()
	w := k.waiter
	switch {
	case w.working: // took over, though its context has ended: its work will notice
		require.True(t, dies)
		m.tookOver(t, k)
	case w.shared:
		require.False(t, dies)
		m.succeeded(t, name, k, v)
		m.shared(t, w, v)
	default:
		m.gaveUp(t, k)
		m.ended(name, k)
	}
}

// check compares what can be seen with the model, after every step.
func (m *machine) check(t *rapid.T) {
	m.want.Active = len(m.keys)
	require.Equal(t, m.want, m.g.Stats())
	for _, name := range []string{"a", "b", "c"} {
		want := coalesce.Init
		if k, active := m.keys[name]; active {
			switch {
			case k.waiter == nil:
				want = coalesce.Process
			case k.declining:
				want = coalesce.Decline
			default:
				want = coalesce.Block
			}
			require.True(t, k.head.working)
			require.False(t, k.head.returned)
		}
		require.Equal(t, want, m.g.State(name), fmt.Sprint("key ", name))
	}
}

// stop lets everybody go.
func (m *machine) stop() {
	for _, k := range m.keys {
		if k.waiter != nil {
			k.waiter.cancel()
		}
	}
	synctest.Wait()
	for _, k := range m.keys {
		k.head.end <- func() (int, error) { return 0, nil }
	}
	synctest.Wait()
}

func TestStateMachine(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		rapid.SyncTest(t, func(t *rapid.T) {
			m := &machine{keys: map[string]*key{}}
			m.g = newGroup(t, coalesce.Config{Wait: maxWait, Keys: maxKeys})
			defer m.stop()
			t.Repeat(map[string]func(*rapid.T){
				"": m.check, "arrive": m.arrive, "arrive too": m.arrive, "done": m.done, "die": m.die, "give up": m.giveUp,
				"head cancelled": m.headCancelled, "time passes": m.timePasses, "race": m.race,
			})
		})
	})
}
