package pace

import (
	"slices"
	"time"
)

// share is a number of events that may be spent from one moment on, up to another.
type share struct {
	n          int
	from, void time.Time
}

// shares are what this replica holds; the bound keeps callers that give up from piling them up.
type shares []share

const maxShares = 64

// passed reports that now is at t or later, by either clock: the monotonic one
// stands still while the machine is suspended, the other may be set back.
func passed(now, t time.Time) bool { return !now.Before(t) || !now.Round(0).Before(t.Round(0)) }

// expire removes what is void and returns how many events that were.
func (s *shares) expire(now time.Time) (void int) {
	*s = slices.DeleteFunc(*s, func(h share) bool {
		if passed(now, h.void) {
			void += h.n
			return true
		}
		return false
	})
	return void
}

// add returns how many events had to make room.
func (s *shares) add(h share) (void int) {
	*s = append(*s, h)
	if len(*s) > maxShares {
		void = (*s)[0].n
		*s = slices.Delete(*s, 0, 1)
	}
	return void
}

// ready returns the first moment, now or later, at which n events can be spent
// together; false when there is none.
func (s shares) ready(now time.Time, n int) (at time.Time, ok bool) {
	consider := func(t time.Time) {
		if (!ok || t.Before(at)) && s.at(t) >= n {
			at, ok = t, true
		}
	}
	consider(now)
	for _, h := range s {
		if h.from.After(now) {
			consider(h.from)
		}
	}
	return at, ok
}

// at is how many events can be spent at t.
func (s shares) at(t time.Time) (n int) {
	for _, h := range s {
		if !t.Before(h.from) && t.Before(h.void) {
			n += h.n
		}
	}
	return n
}

// spend takes n events that are ready, those first that are void first.
func (s *shares) spend(now time.Time, n int) {
	slices.SortStableFunc(*s, func(a, b share) int { return a.void.Compare(b.void) })
	for i := range *s {
		h := &(*s)[i]
		if n > 0 && !now.Before(h.from) {
			k := min(n, h.n)
			h.n, n = h.n-k, n-k
		}
	}
	*s = slices.DeleteFunc(*s, func(h share) bool { return h.n == 0 })
}
