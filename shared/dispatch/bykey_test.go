package dispatch_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pillarbox/pillarbox/shared/dispatch"
)

// TestByKeyKeepsOrder is its order law: a key's messages go to one worker, in
// order, none beside another, and none behind a failed one.
func TestByKeyKeepsOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := newWitness()
		bad := rapid.IntRange(-1, 60).Draw(t, "bad")
		w.fails = func(_ string, m message) bool { return m.n == bad }
		k := dispatch.NewByKey(keyOf)
		for i := range rapid.IntRange(1, 5).Draw(t, "workers") {
			require.NoError(t, k.Join(fmt.Sprint(i), w.handler(fmt.Sprint(i))))
		}
		messages := drawMessages(t)
		errs := k.HandleBatch(context.Background(), messages)
		last, broken := map[string]int{}, map[string]bool{}
		for _, s := range w.seen {
			require.Equal(t, k.WorkerOf(s.key), s.worker)
			require.GreaterOrEqual(t, s.n, last[s.key], "in order")
			last[s.key] = s.n
		}
		for i, m := range messages {
			switch {
			case m.n == bad:
				require.ErrorIs(t, errs[i], errBoom)
				broken[m.key] = true
			case broken[m.key]:
				require.ErrorIs(t, errs[i], dispatch.ErrPredecessor)
			default:
				require.NoError(t, errorAt(errs, i), "other keys go on")
			}
			require.LessOrEqual(t, w.most["key "+m.key], 1)
		}
	})
}

// TestByKeyIsStable is its stability law: one worker that comes or goes moves
// only its own share, and that share is a fair one.
func TestByKeyIsStable(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-z0-9.-]{1,12}`), 2, 12, rapid.ID).Draw(t, "names")
		k := dispatch.NewByKey(keyOf)
		handle := func(context.Context, message) error { return nil }
		for _, name := range names {
			require.NoError(t, k.Join(name, handle))
		}
		const keys = 2000
		owners := func() []string {
			all := make([]string, keys)
			for i := range all {
				all[i] = k.WorkerOf(fmt.Sprintf("order-%d", i))
			}
			return all
		}
		before := owners()
		who := rapid.SampledFrom(names).Draw(t, "who")
		require.NoError(t, k.Leave(context.Background(), who))
		moved := 0
		for i, now := range owners() {
			require.NotEqual(t, who, now)
			if before[i] == who {
				moved++
			} else {
				require.Equal(t, before[i], now, "only its own keys move")
			}
		}
		share := keys / len(names)
		require.InDelta(t, share, moved, 0.35*float64(share)+40, "a fair share")
		require.NoError(t, k.Join(who, handle))
		require.Equal(t, before, owners(), "and they come back to it")
	})
}

// TestByKeyAgreesBetweenProcesses: these owners may never change, or replicas of
// two releases would disagree.
func TestByKeyAgreesBetweenProcesses(t *testing.T) {
	t.Parallel()
	k := dispatch.NewByKey(keyOf)
	for _, name := range []string{"1", "2", "3", "4"} {
		require.NoError(t, k.Join(name, func(context.Context, message) error { return nil }))
	}
	got := ""
	for i := range 20 {
		got += k.WorkerOf(fmt.Sprintf("order-%d", i))
	}
	require.Equal(t, "41143143414342213221", got)
}

// TestByKeyKeepsOrderWhileWorkersComeAndGo: messages of one key, each called
// after the former returned or beside messages of other keys, never overlap.
func TestByKeyKeepsOrderWhileWorkersComeAndGo(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := newWitness()
		k := dispatch.NewByKey(keyOf)
		require.NoError(t, k.Join("stays", w.handler("stays")))
		changes := rapid.SliceOfN(rapid.IntRange(0, 3), 0, 20).Draw(t, "changes")
		var running sync.WaitGroup
		running.Go(func() {
			for _, i := range changes {
				name := fmt.Sprint("w", i)
				if err := k.Join(name, w.handler(name)); errors.Is(err, dispatch.ErrJoined) {
					if err := k.Leave(context.Background(), name); err != nil {
						t.Error(err)
					}
				}
			}
		})
		messages := drawMessages(t)
		errs := spread(t, k, messages)
		running.Wait()
		require.NoError(t, errors.Join(errs...))
		require.Len(t, w.counts(), len(messages))
		require.Len(t, w.seen, len(messages))
		for _, m := range messages {
			require.LessOrEqual(t, w.most["key "+m.key], 1)
		}
	})
}

// TestByKeyRunsKeysSideBySide: the time of a batch is that of the busiest worker.
func TestByKeyRunsKeysSideBySide(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := dispatch.NewByKey(keyOf)
		for i := range 4 {
			require.NoError(t, k.Join(fmt.Sprint(i), func(context.Context, message) error {
				<-time.After(time.Second)
				return nil
			}))
		}
		var messages []message
		load := map[string]int{}
		for i := range 20 {
			m := message{i, fmt.Sprint("k", i%10)}
			messages = append(messages, m)
			load[k.WorkerOf(m.key)]++
		}
		busiest := 0
		for _, n := range load {
			busiest = max(busiest, n)
		}
		start := time.Now()
		require.Nil(t, k.HandleBatch(t.Context(), messages))
		require.Equal(t, time.Duration(busiest)*time.Second, time.Since(start))
		require.Less(t, busiest, 20)
	})
}
