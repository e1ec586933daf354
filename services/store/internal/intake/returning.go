package intake

import (
	"sync/atomic"
	"time"
)

// returning tells a committer whom to wait for. Clients that post one order after another are back a moment after the
// transaction that answered them: too late for the next one, if that begins at once, so that two crowds
// would take turns, each waiting for the other's commit. So the next one begins when as many are there as were
// answered or waiting at the end of the last, or enough, or after half of what that took. Where nobody comes back
// nobody is waited for: after each time in vain the next attempt is twice as many transactions away.
type returning struct {
	held atomic.Int32 // 1 while a committer holds a request and waits for the turn

	expected int
	took     time.Duration // by the last transaction
	vain     int           // attempts in vain, one after another
	skip     int           // transactions until the next attempt
}

// The bounds of a wait, and of the attempts in vain that count: 1 in 64 transactions tries again.
const patienceMost, vainMost = 5 * time.Millisecond, 6

// share is enough for a request of a transaction's time: where so many are there that each one's is smaller, more of
// them save less than processors that wait lose.
const share = 100 * time.Microsecond

// ended notes the end of a transaction that answered so many requests while others waited.
func (r *returning) ended(answered, waiting int, took time.Duration) {
	r.expected, r.took = answered+waiting+int(r.held.Load()), took
}

// await takes requests from the queue until the expected ones are there, in it or taken, or full reports that no more
// fit. A closed queue ends it, too.
func (r *returning) await(requests []*request, queue <-chan *request, full func([]*request) bool) []*request {
	expected := min(r.expected, int(r.took/share))
	r.expected = 0
	missing := func() bool { return len(requests)+len(queue) < expected && !full(requests) }
	if !missing() {
		return requests
	}
	if r.skip > 0 {
		r.skip--
		return requests
	}
	timer := time.NewTimer(min(r.took/2, patienceMost))
	defer timer.Stop()
	for missing() {
		select {
		case next := <-queue:
			if next == nil {
				return requests
			}
			requests = append(requests, next)
		case <-timer.C:
			r.vain = min(r.vain+1, vainMost)
			r.skip = 1 << r.vain
			return requests
		}
	}
	r.vain = 0
	return requests
}
