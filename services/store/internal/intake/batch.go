package intake

import (
	"context"
	"errors"

	"github.com/pillarbox/pillarbox/services/store/internal/order"
)

// Item is one order of a batch.
type Item struct {
	Placement order.Placement
	Keyed     *Keyed // nil without an idempotency key
	Size      int    // roughly its bytes in memory
}

// Outcome is what became of an item.
type Outcome struct {
	Answer Answer
	Err    error
}

// PlaceAll stores the items that can be stored and says of each, in their order, what became
// of it. They go through the queue in parts, one after another: of two items with one key the
// first is the one that makes the order. When the intake or the database fails, or the wait
// ends, the parts that are left are not tried.
func (in *Intake) PlaceAll(ctx context.Context, items []Item, t Trace) []Outcome {
	ctx, cancel := context.WithTimeout(ctx, in.config.Wait) // for all parts together: the answer has its deadline, too
	defer cancel()
	outcomes := make([]Outcome, len(items))
	for at := 0; at < len(items); {
		end := at + in.partOf(items[at:])
		failed := in.placePart(ctx, items[at:end], t, outcomes[at:end])
		at = end
		if failed != nil {
			in.metrics.refuse(failed, len(items)-at)
			for i := at; i < len(items); i++ {
				outcomes[i].Err = failed
			}
			break
		}
	}
	return outcomes
}

// partOf is the number of items that fit into one transaction.
func (in *Intake) partOf(items []Item) (n int) {
	bytes := 0
	for n < len(items) && n < in.config.Group && bytes < in.config.GroupBytes {
		bytes += items[n].Size
		n++
	}
	return n
}

// placePart stores the items in one transaction. It returns the reason why the next part would
// fare no better, or nil.
func (in *Intake) placePart(ctx context.Context, items []Item, t Trace, outcomes []Outcome) error {
	var jobs []*job
	var indexes []int
	size := 0
	for i, item := range items {
		j, err := newPlacing(item.Placement, item.Keyed, t)
		if err == nil {
			err = in.deps.Admit()
		}
		if err != nil {
			in.metrics.refuse(err, 1)
			outcomes[i].Err = err
			continue
		}
		jobs, indexes, size = append(jobs, j), append(indexes, i), size+item.Size
	}
	if len(jobs) == 0 {
		return nil
	}
	if err := in.do(ctx, newRequest(size, jobs...)); err != nil {
		for _, i := range indexes {
			outcomes[i].Err = err
		}
		return err
	}
	var failed error
	for n, j := range jobs {
		outcomes[indexes[n]] = Outcome{j.result.answer, j.result.err}
		switch {
		case errors.Is(j.result.err, ErrStopping):
			failed = ErrStopping
		case errors.Is(j.result.err, ErrUnavailable), errors.Is(j.result.err, ErrUnknown):
			failed = ErrUnavailable // of the parts to come it is known: they were never tried
		}
	}
	return failed
}
