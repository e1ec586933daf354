package consumer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/failpoint"
)

// batch is what a group starts from.
type batch struct {
	items  []*item
	orders []string // whose waiting rows are to run, beyond those of items
	closed bool     // take no waiting rows along: the group is being redone in parts
}

// members is a batch with what was read for it before the transaction.
type members struct {
	items  []*item
	orders []string
	alone  []string // orders without an item
	pos    position
}

// result is what a committed group did.
type result struct {
	plan
	refused []*item // no room for their waiting rows
	onward  []*item // to be handed on along their routes
}

const (
	discardTimeout = 5 * time.Second
	// chainBytes bounds the waiting events that one group takes along.
	chainBytes = 16 << 20
)

func all(string) bool { return true }

// run does one group: reads, Prepare, the transaction, Done. The members are
// returned with an error too: they are what has to be done again in parts.
func (c *Consumer) run(ctx context.Context, b batch) (result, []*item, error) {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	m, err := c.gather(ctx, b)
	if err != nil {
		return result{}, m.items, err
	}
	if len(m.items) == 0 {
		return result{}, nil, nil
	}
	if dedupFirst {
		if err := c.claimFirst(ctx, m); err != nil {
			return result{}, m.items, err
		}
	}
	guess := c.decide(m, m.pos, all)
	work, may, err := c.prepare(ctx, guess)
	if err != nil {
		return result{}, m.items, err
	}
	var res result
	var finished []string
	err = c.db.Tx(ctx, func(ctx context.Context, tx *database.Tx) (err error) {
		res, finished, err = c.transact(ctx, tx, m, work, may)
		return err
	})
	if err != nil {
		if work != nil && !errors.Is(err, database.ErrCommitUnknown) {
			discard(ctx, work)
		}
		return result{}, m.items, err
	}
	c.parkedRows.Add(int64(len(res.wait)))
	failpoint.Hit(c.Name + ".after_commit")
	if len(res.wait) > 0 {
		failpoint.Hit(c.Name + ".waiting_committed")
	}
	return res, m.items, committed(c.finish(ctx, work, res, finished))
}

// gather reads, without a lock, where the orders stand and which waiting rows go along.
func (c *Consumer) gather(ctx context.Context, b batch) (m members, err error) {
	m = members{items: inOrder(b.items)}
	defer func() { c.markEarly(m.items) }()
	if !c.Ordered {
		return m, nil
	}
	read := c.db.Read()
	m.orders = sorted(ordersOf(m.items), b.orders)
	if m.pos.lanes, err = readLanes(ctx, read, m.orders); err != nil {
		return m, err
	}
	if m.pos.rows, err = readRows(ctx, read, m.orders, c.span()); err != nil {
		return m, err
	}
	if !b.closed {
		along := chain(m.pos, m.items, m.orders, c.Batch-len(m.items), chainBytes)
		loaded, bad, err := load(ctx, read, along)
		if err != nil {
			return m, err
		}
		if err := c.buryRows(ctx, bad); err != nil {
			return m, err
		}
		m.items = inOrder(slices.Concat(m.items, loaded))
	}
	if err := c.recognise(ctx, read, m.items, m.pos.lanes); err != nil {
		return m, err
	}
	with := ordersOf(m.items)
	m.alone = slices.DeleteFunc(slices.Clone(m.orders), func(o string) bool {
		_, has := slices.BinarySearch(with, o)
		return has
	})
	return m, nil
}

// span is how far above a lane a group can get: its own messages and the rows
// it takes along, and one more to see what comes next.
func (c *Consumer) span() int { return 2*c.Batch + 1 }

func (c *Consumer) decide(m members, p position, may func(string) bool) plan {
	if !c.Ordered {
		return plan{due: m.items}
	}
	return decide(p, m.items, m.alone, may)
}

// prepare calls the effect for what is probably due, and says which events may
// be due in the transaction.
func (c *Consumer) prepare(ctx context.Context, guess plan) (work Work, may func(string) bool, err error) {
	if only, ok := c.effect.(*inTx); ok {
		return only, all, nil
	}
	prepared := make(map[string]bool, len(guess.due))
	for _, i := range guess.due {
		prepared[i.ID] = true
	}
	may = func(id string) bool { return prepared[id] }
	group := guess.group()
	if len(group.Due)+len(group.Duplicates) == 0 {
		return nil, may, nil
	}
	err = guard(func() (err error) {
		work, err = c.effect.Prepare(ctx, group)
		return err
	})
	if err == nil && work == nil {
		err = errors.New("effect returned no work")
	}
	if err != nil {
		return nil, may, &prepareError{err}
	}
	return work, may, nil
}

func (p plan) group() Group {
	return Group{Due: eventsOf(seen(p.due)), Duplicates: eventsOf(seen(p.duplicates))}
}

// transact locks the lanes, decides again and makes the effects. finished are
// the events whose rows go once the effect's work is done.
func (c *Consumer) transact(ctx context.Context, tx *database.Tx, m members, work Work, may func(string) bool) (
	res result, finished []string, err error,
) {
	if err := c.seat.check(ctx, tx); err != nil {
		return res, nil, err
	}
	var now position
	if c.Ordered {
		if now.lanes, err = lockLanes(ctx, tx, m.orders, m.pos.lanes); err != nil {
			return res, nil, err
		}
		if now.rows, err = readRows(ctx, tx, m.orders, c.span()); err != nil {
			return res, nil, err
		}
		if err = c.recognise(ctx, tx, m.items, now.lanes); err != nil {
			return res, nil, err
		}
	}
	if dedupFirst {
		now = m.pos
	}
	res.plan = c.decide(m, now, may)
	if res.wait, res.refused, err = c.admit(ctx, tx, res.wait); err != nil {
		return res, nil, err
	}
	if err := insertWaiting(ctx, tx, res.wait); err != nil {
		return res, nil, err
	}
	if err := joinRoutes(ctx, tx, now, res.plan); err != nil {
		return res, nil, err
	}
	if res.onward, err = c.onward(ctx, tx, res.plan); err != nil {
		return res, nil, err
	}
	if err := advance(ctx, tx, res.lanes); err != nil {
		return res, nil, err
	}
	if work != nil {
		if err := guard(func() error { return work.Apply(ctx, tx, res.group()) }); err != nil {
			return res, nil, fmt.Errorf("apply: %w", err)
		}
	}
	for _, i := range slices.Concat(res.due, res.duplicates) {
		if i.stored || now.has(i.Subject, i.ID) {
			finished = append(finished, i.ID)
		}
	}
	if _, ok := work.(*inTx); ok {
		now, later := byRoute(finished, res.onward)
		if err := settleRows(ctx, tx, now); err != nil {
			return res, nil, err
		}
		finished = later
	}
	failpoint.Hit(c.Name + ".before_commit")
	return res, finished, nil
}

// finish runs Done, hands the events on along their routes, and then removes their rows. A row that outlives
// its effect is the memory that this has not happened yet: the message behind it was
// acknowledged long ago, so nothing else would bring it back.
func (c *Consumer) finish(ctx context.Context, work Work, res result, rows []string) error {
	if work != nil {
		err := guard(func() error { return work.Done(ctx) })
		var panicked *panicError
		switch {
		case errors.As(err, &panicked):
			return fmt.Errorf("done: %w", err)
		case err != nil:
			return AsOutage(fmt.Errorf("done: %w", err))
		}
		failpoint.Hit(c.Name + ".after_done")
	}
	if err := c.forward(ctx, res.onward); err != nil {
		return err
	}
	if len(rows) == 0 {
		return nil
	}
	err := c.db.Tx(ctx, func(ctx context.Context, tx *database.Tx) error { return settleRows(ctx, tx, rows) })
	if err != nil {
		return AsOutage(err)
	}
	return nil
}

// discard gets its own short time: the group may have failed because its time was up.
func discard(ctx context.Context, work Work) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), discardTimeout)
	defer cancel()
	// A panic here changes nothing: the transaction did not happen and its error is already known.
	_ = guard(func() error { work.Discard(ctx); return nil })
}
