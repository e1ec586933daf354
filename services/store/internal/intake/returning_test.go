package intake

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/shared/group"
)

func noLimit([]*request) bool { return false }

func TestNobodyIsAwaitedWhoIsNotExpected(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var r returning
		queue := make(chan *request, 10)
		begun := time.Now()
		require.Len(t, r.await([]*request{{}}, queue, noLimit), 1, "nothing has ended yet")
		r.ended(1, 0, time.Second)
		require.Len(t, r.await([]*request{{}}, queue, noLimit), 1, "the one that was answered")
		r.ended(3, 2, time.Second)
		for range 4 {
			queue <- &request{}
		}
		require.Len(t, r.await([]*request{{}}, queue, noLimit), 1, "the others are in the queue")
		r.ended(4, 1, time.Second)
		require.Len(t, r.await([]*request{{}, {}}, queue, group.UpTo[*request](2)), 2, "no more fit")
		r.ended(20, 0, 5*share)
		require.Len(t, r.await([]*request{{}}, queue, noLimit), 1, "five are enough for so short a transaction")
		require.Zero(t, time.Since(begun))
	})
}

func TestThoseWhoWereAnsweredAreAwaited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var r returning
		queue := make(chan *request, 10)
		r.held.Store(1) // the first of the next group
		r.ended(2, 1, time.Hour)
		for n := range time.Duration(3) {
			time.AfterFunc((n+1)*time.Millisecond, func() { queue <- &request{} })
		}
		begun := time.Now()
		taken := r.await([]*request{{}}, queue, noLimit)
		require.Equal(t, 4, len(taken)+len(queue))
		require.Equal(t, 3*time.Millisecond, time.Since(begun))

		r.ended(4, 0, time.Hour)
		close(queue)
		require.LessOrEqual(t, len(r.await([]*request{{}}, queue, noLimit)), 2, "nobody comes any more")
		require.Equal(t, 3*time.Millisecond, time.Since(begun))
	})
}

func TestWaitingInVainBecomesRare(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var r returning
		queue := make(chan *request, 10)
		next := func(took time.Duration) time.Duration {
			r.ended(2, 0, took)
			begun := time.Now()
			r.await([]*request{{}}, queue, noLimit)
			return time.Since(begun)
		}
		require.Equal(t, 2*time.Millisecond, next(4*time.Millisecond), "half of what the last took")
		for n := range 2 {
			require.Zero(t, next(time.Second), n)
		}
		require.Equal(t, patienceMost, next(time.Second), "but no more")
		for n := range 4 {
			require.Zero(t, next(time.Second), n)
		}
		waits := 0
		for range 10_000 {
			if next(time.Second) > 0 {
				waits++
			}
		}
		require.InDelta(t, 10_000/(1<<vainMost), waits, 5)

		for r.vain > 0 {
			back := time.AfterFunc(time.Millisecond, func() { queue <- &request{} })
			next(time.Second)
			back.Stop()
			for len(queue) > 0 {
				<-queue
			}
		}
		require.Zero(t, r.skip, "somebody came back: waiting is worth it again")
	})
}
