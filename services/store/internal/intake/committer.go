package intake

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/failpoint"
	"github.com/pillarbox/pillarbox/shared/group"
	"github.com/pillarbox/pillarbox/shared/logs"
)

// attempts at a request alone in its transaction that meets a conflict.
const attempts = 3

// slow is how long a transaction keeps the next one from beginning. Groups one after another are larger than
// groups side by side, and a disk's fsyncs come one after another in any case: with 8 clients two
// committers reach half of what one does. But one that waits for a lock must not hold up everybody.
const slow = 20 * time.Millisecond

// commitQueue commits groups until the queue is closed and empty.
func (in *Intake) commitQueue() {
	for {
		work, requests := in.nextGroup()
		if len(requests) == 0 {
			return
		}
		in.commitInTurn(work, requests)
		<-in.slots
	}
}

// nextGroup waits for a request, a slot and the turn, and takes what waits then. It returns nothing when the queue is
// closed and empty.
func (in *Intake) nextGroup() (work context.Context, requests []*request) {
	in.taking.Lock()
	defer in.taking.Unlock()
	first := in.left
	if first == nil {
		if first = <-in.queue; first == nil {
			return nil, nil
		}
	}
	in.returning.held.Store(1)
	in.slots <- struct{}{}
	work = <-in.turn
	in.returning.held.Store(0)
	full := in.full()
	requests, in.left = in.gather(in.returning.await([]*request{first}, in.queue, full), full)
	return work, requests
}

// full returns a function that reports that no more fit into a transaction, of requests that only grow.
func (in *Intake) full() func([]*request) bool {
	jobs, bytes, counted := 0, 0, 0
	return func(requests []*request) bool {
		for ; counted < len(requests); counted++ {
			jobs, bytes = jobs+len(requests[counted].jobs), bytes+requests[counted].size
		}
		return in.config.Mode == ModeSingle || jobs >= in.config.Group || bytes >= in.config.GroupBytes
	}
}

// commitInTurn commits the requests and passes the turn on, at the end or when it takes long. After work has ended
// it only refuses.
func (in *Intake) commitInTurn(work context.Context, requests []*request) {
	pass := sync.OnceFunc(func() { in.turn <- work })
	defer pass()
	timer := time.AfterFunc(slow, pass)
	begun := time.Now()
	var jobs []*job
	for _, r := range requests {
		if r.state.CompareAndSwap(waiting, taken) {
			jobs = append(jobs, r.jobs...)
		}
	}
	if work.Err() != nil {
		in.fail(jobs, ErrStopping)
	} else {
		in.commit(work, jobs)
	}
	if timer.Stop() { // the turn is still ours
		in.returning.ended(len(requests), len(in.queue), time.Since(begun))
	}
}

// gather takes what waits behind requests, without waiting for more. One that it took from the
// queue and that no longer fits is the next group's first.
func (in *Intake) gather(requests []*request, full func([]*request) bool) (taken []*request, next *request) {
	taken = group.Take(requests, in.queue, full)
	jobs := 0
	for _, r := range taken {
		jobs += len(r.jobs)
	}
	if last := len(taken) - 1; last > 0 && jobs > in.config.Group {
		return taken[:last], taken[last]
	}
	return taken, nil
}

// commit writes the group and answers each of its jobs.
func (in *Intake) commit(work context.Context, group []*job) {
	if len(group) == 0 {
		return
	}
	results, err := in.transaction(work, group)
	if err == nil {
		in.answer(group, results)
		return
	}
	in.deps.Log.WarnContext(work, "intake transaction failed", logs.Count, len(group), logs.Error, err)
	switch {
	case outage(err) != nil:
		in.fail(group, outage(err))
	case len(group) == 1 && !again(err):
		in.fail(group, err)
	default:
		in.commitSingly(work, group)
	}
}

// commitSingly writes each job in a transaction of its own, so that the one the database refuses
// fails alone. When the database goes away meanwhile, or a row stays locked for long, the rest is not tried.
func (in *Intake) commitSingly(work context.Context, group []*job) {
	in.metrics.redone.Inc()
	deadline := time.Now().Add(in.config.Wait)
	for i, j := range group {
		if time.Now().After(deadline) {
			in.fail(group[i:], ErrBusy)
			return
		}
		var results []result
		var err error
		for range attempts {
			results, err = in.transaction(work, group[i:i+1])
			if !again(err) {
				break
			}
		}
		switch {
		case err == nil:
			in.answer(group[i:i+1], results)
		case errors.Is(err, database.ErrCommitUnknown):
			in.fail(group[i:i+1], outage(err))
			in.fail(group[i+1:], ErrUnavailable)
			return
		case outage(err) != nil:
			in.fail(group[i:], outage(err))
			return
		default:
			in.deps.Log.WarnContext(work, "request refused by the database", logs.Key, j.orderID, logs.Error, err)
			if again(err) {
				err = fmt.Errorf("%w: %w", ErrBusy, err)
			}
			in.fail(group[i:i+1], err)
		}
	}
}

// again reports that the same work may succeed at once.
func again(err error) bool {
	return database.Classify(err) == database.ClassConflict || errors.Is(err, errAnswerGone)
}

// outage is what a client is told when the database, not the request, is the cause; else nil.
func outage(err error) error {
	switch {
	case errors.Is(err, database.ErrCommitUnknown):
		return fmt.Errorf("%w: %w", ErrUnknown, err)
	case database.Classify(err) == database.ClassUnavailable, errors.Is(err, context.Canceled):
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return nil
}

// transaction writes the group as one transaction.
func (in *Intake) transaction(work context.Context, group []*job) ([]result, error) {
	ctx, cancel := context.WithTimeout(work, in.config.Timeout)
	defer cancel()
	start := time.Now()
	w, done, err := in.quick(ctx, group)
	if err == nil && !done {
		w, err = in.inSteps(ctx, group)
	}
	if err != nil {
		return nil, err
	}
	failpoint.Hit("store.intake.after_commit")
	in.metrics.groupSize.Observe(float64(len(group)))
	in.metrics.commit.Observe(time.Since(start).Seconds())
	if len(w.rows) > 0 {
		in.deps.Wake()
	}
	for _, row := range w.rows {
		in.metrics.events.WithLabelValues(row.Event.Type).Inc()
		in.deps.Log.InfoContext(ctx, "order stored", logs.EventID, row.Event.ID, logs.EventType, row.Event.Type,
			logs.Key, row.Event.Subject, logs.Version, row.Event.Version)
	}
	return w.results, nil
}

// inSteps is the way for groups that have to look before they write.
func (in *Intake) inSteps(ctx context.Context, group []*job) (w writer, err error) {
	err = in.deps.DB.Tx(ctx, func(ctx context.Context, tx *database.Tx) error {
		w = writer{in: in, tx: tx, group: group, results: make([]result, len(group))}
		if err := w.write(ctx); err != nil {
			return err
		}
		failpoint.Hit("store.intake.before_commit")
		return nil
	})
	return w, err
}

func (in *Intake) answer(group []*job, results []result) {
	for i, j := range group {
		if results[i].answer.Replayed {
			in.metrics.replayed.Inc()
		}
		j.finish(results[i])
	}
}

func (in *Intake) fail(group []*job, err error) {
	in.metrics.refuse(err, len(group))
	for _, j := range group {
		j.finish(result{err: err})
	}
}
