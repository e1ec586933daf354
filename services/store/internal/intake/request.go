package intake

import (
	"sync/atomic"
	"time"

	"github.com/pillarbox/pillarbox/services/store/internal/order"
)

// request is what came at once and goes into one transaction: one job, or a part of a batch.
// The committer that moves state from waiting to taken owns left until it closes done.
type request struct {
	jobs  []*job
	size  int // roughly its bytes in memory
	state atomic.Int32
	left  int // jobs without a result
	done  chan struct{}
}

const (
	waiting int32 = iota
	taken
	abandoned
)

func newRequest(size int, jobs ...*job) *request {
	r := &request{jobs: jobs, size: size, left: len(jobs), done: make(chan struct{})}
	for _, j := range jobs {
		j.request = r
	}
	return r
}

// job is one order on its way to be placed or changed.
type job struct {
	placement *order.Placement // a new order, else change
	change    func(o order.Order, at time.Time) (changed order.Order, differs bool, err error)
	eventType string
	orderID   string
	keyed     *Keyed
	trace     Trace

	request *request // nil for an accepted one, which nobody waits for
	result  result   // the committer's until request.done

	// Of an accepted job:
	size    int
	release func() // gives its memory back to whoever lent it
	doubt   bool   // a commit with it ended unknown, so that it may be stored already
}

type result struct {
	order  order.Order // of a change
	answer Answer      // to a placement
	err    error
}

func (j *job) finish(r result) {
	j.result = r
	if j.request.left--; j.request.left == 0 {
		close(j.request.done)
	}
}
