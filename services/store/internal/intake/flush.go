package intake

import (
	"context"
	"errors"
	"time"

	"github.com/pillarbox/pillarbox/services/store/internal/orderdb"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/logs"
)

// The pauses between two attempts at a flush while the database is away.
const flushPause, flushPauseMost = 10 * time.Millisecond, time.Second

// flushShelf stores what is on the shelf, by time and by count, until the shelf is closed and empty.
func (in *Intake) flushShelf(work context.Context) {
	tick := time.NewTicker(in.config.FlushEvery)
	defer tick.Stop()
	for open := true; open; {
		select {
		case <-tick.C:
		case <-in.shelf.ripe:
		case <-in.shelf.closing:
			open = false
		}
		in.storeAccepted(work, in.shelf.take())
	}
}

// storeAccepted stores the jobs group by group.
func (in *Intake) storeAccepted(work context.Context, jobs []*job) {
	for len(jobs) > 0 {
		n, bytes := 0, 0
		for n < len(jobs) && n < in.config.Group && bytes < in.config.GroupBytes {
			bytes += jobs[n].size
			n++
		}
		in.storeGroup(work, jobs[:n])
		jobs = jobs[n:]
	}
}

// storeGroup tries until each job is stored or refused, or work has ended: then what is left is lost.
func (in *Intake) storeGroup(work context.Context, group []*job) {
	for pause := flushPause; ; pause = min(2*pause, flushPauseMost) {
		group = in.tryGroup(work, group)
		if len(group) == 0 {
			return
		}
		wait := time.NewTimer(pause)
		select {
		case <-wait.C:
		case <-work.Done():
			wait.Stop()
			for _, j := range group {
				in.lose(work, j, "stopped", ErrStopping)
			}
			return
		}
	}
}

// tryGroup stores the group, or each of its jobs alone when something is wrong with one of them. It
// returns those that are worth another try.
func (in *Intake) tryGroup(work context.Context, group []*job) (left []*job) {
	results, err := in.transaction(work, group)
	if err == nil {
		in.settle(work, group, results)
		return nil
	}
	in.deps.Log.WarnContext(work, "flush of accepted orders failed", logs.Count, len(group), logs.Error, err)
	if outage(err) != nil {
		doubt(group, err)
		return group
	}
	in.metrics.redone.Inc()
	for i, j := range group {
		results, err := in.transaction(work, group[i:i+1])
		switch {
		case err == nil:
			in.settle(work, group[i:i+1], results)
		case outage(err) != nil:
			doubt(group[i:i+1], err)
			return append(left, group[i:]...)
		case again(err), j.doubt && errors.Is(err, orderdb.ErrOvertaken): // the commit in doubt came through meanwhile
			left = append(left, j)
		default:
			in.lose(work, j, "refused", err)
		}
	}
	return left
}

// doubt marks the jobs after a commit whose end is unknown: the next attempt looks before it inserts.
func doubt(group []*job, err error) {
	if errors.Is(err, database.ErrCommitUnknown) {
		for _, j := range group {
			j.doubt = true
		}
	}
}

func (in *Intake) settle(work context.Context, group []*job, results []result) {
	for i, j := range group {
		if err := results[i].err; err != nil {
			in.lose(work, j, "refused", err)
			continue
		}
		in.shelf.done(j)
	}
}

// lose gives up an order whose client believes that it was taken.
func (in *Intake) lose(ctx context.Context, j *job, why string, err error) {
	in.metrics.lost.WithLabelValues(why).Inc()
	in.deps.Log.ErrorContext(ctx, "accepted order is not stored", logs.Key, j.orderID, logs.Reason, why, logs.Error, err)
	in.shelf.done(j)
}
