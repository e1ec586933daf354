package consumer

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/events"
	"github.com/pillarbox/pillarbox/shared/logs"
)

// orphans is what the sweep knows of waiting events without a predecessor. Only
// the sweep's goroutine touches it, except for count.
type orphans struct {
	cursor string          // the order up to which this pass has looked
	known  map[string]bool // orders that are no baseline: their placing came after our start
	found  map[string]bool // gaps of this pass
	count  atomic.Int64    // of gaps in the last full pass
	warned map[string]bool // orders that a line was written about
}

func (o *orphans) lost() int { return int(o.count.Load()) }

const (
	orphanPage  = 500
	baselineAge = 3 * time.Second
	gapAge      = 10 * time.Second
	// routeAge is both for events that came along a route: those before hand events on in the order in which
	// they finish them, so the predecessor may still come though everything in the stream is acknowledged.
	routeAge = time.Minute
	// warnLimit bounds the memory of, and warnBurst the lines about, gaps per pass.
	warnLimit, warnBurst = 1000, 10
)

// orphan is the first event of an order that is stored above its lane while
// its predecessor is neither applied nor stored.
type orphan struct {
	row
	lane      int64
	age       time.Duration
	routed    bool // it came along a route
	forgotten bool // its order's lane had been removed when it came
}

// findOrphans looks at a page of orphans. That a predecessor is not here proves
// nothing while it may still be on its way; the broker's ack floor does: every
// message up to it was acknowledged, hence applied, stored or buried. So the
// floor is read first, the tables after it.
//
// While events of the past may come, neither proves anything. That is asked for before the floor, too.
func (c *Consumer) findOrphans(ctx, work context.Context) error {
	if c.catchingUp() {
		c.forgetOrphans()
		return nil
	}
	floor, err := c.sub.AckFloor(ctx, c.Topic)
	if err != nil {
		// Without a broker there is no proof, and nothing to report that the subscriber does not report.
		c.log.DebugContext(ctx, "no look for lost events without the ack floor", logs.Error, err)
		return nil
	}
	page, err := c.orphanPage(ctx)
	if err != nil {
		return err
	}
	o := &c.orphans
	var newcomers []orphan
	for _, p := range page {
		o.cursor = p.orderID
		if p.sequence > floor || p.routed && p.age < routeAge {
			continue
		}
		if p.lane == 0 && p.sequence > 0 && !o.known[p.orderID] {
			newcomers = append(newcomers, p)
		} else if p.age >= gapAge {
			c.gap(ctx, p)
		}
	}
	if err := c.baselines(ctx, work, newcomers); err != nil {
		return err
	}
	if len(page) < orphanPage {
		c.passEnds()
	}
	return nil
}

func (c *Consumer) orphanPage(ctx context.Context) ([]orphan, error) {
	now := c.db.Dialect().Now()
	rows, err := c.db.Read().QueryContext(ctx, `
		SELECT p.event_id, p.order_id, p.version, p.stream_sequence, coalesce(l.version, 0), `+now+` - p.created_at,
			CASE WHEN p.headers LIKE '%"`+events.HeaderRoute+`"%' THEN 1 ELSE 0 END, p.forgotten
		FROM parked p LEFT JOIN lanes l ON l.order_id = p.order_id
		WHERE p.state = 'waiting' AND p.order_id > $1 AND p.version > coalesce(l.version, 0) + 1
			AND p.created_at <= `+now+` - $2
			AND NOT EXISTS (SELECT 1 FROM parked q WHERE q.order_id = p.order_id
				AND q.version < p.version AND q.version > coalesce(l.version, 0))
		ORDER BY p.order_id LIMIT $3`, c.orphans.cursor, baselineAge.Microseconds(), orphanPage)
	if err != nil {
		return nil, fmt.Errorf("find orphans: %w", err)
	}
	var page []orphan
	err = each(rows, func() error {
		var p orphan
		var age, routed, forgotten int64
		if err := rows.Scan(&p.eventID, &p.orderID, &p.version, &p.sequence, &p.lane, &age, &routed, &forgotten); err != nil {
			return err
		}
		p.routed, p.forgotten = routed != 0, forgotten != 0
		p.age = time.Duration(age) * time.Microsecond
		page = append(page, p)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("find orphans: %w", err)
	}
	return page, nil
}

// gap notes an order whose next event is lost. A person has to decide what
// becomes of it: the later events stay where they are.
func (c *Consumer) gap(ctx context.Context, p orphan) {
	o := &c.orphans
	if o.found == nil {
		o.found = map[string]bool{}
	}
	o.found[p.orderID] = true
	if o.warned[p.orderID] || len(o.warned) >= warnLimit || len(o.found) > warnBurst {
		return
	}
	if o.warned == nil {
		o.warned = map[string]bool{}
	}
	o.warned[p.orderID] = true
	c.log.WarnContext(ctx, "an event is missing and its order waits", logs.Key, p.orderID,
		logs.Version, p.lane+1, logs.EventID, p.eventID, logs.Sequence, p.sequence)
}

// passEnds publishes what a whole pass found and forgets what is no orphan any more.
func (c *Consumer) passEnds() {
	o := &c.orphans
	o.count.Store(int64(len(o.found)))
	c.metrics.gaps.Set(float64(len(o.found)))
	for order := range o.warned {
		if !o.found[order] {
			delete(o.warned, order)
		}
	}
	if len(o.known) > 2*len(o.found)+orphanPage {
		o.known = nil
	}
	o.cursor, o.found = "", nil
}

// forgetOrphans is the end of a pass over an empty table.
func (c *Consumer) forgetOrphans() {
	c.orphans.found = nil
	c.passEnds()
}

// baselines lets orders begin with the first event this consumer was given,
// when they were placed before its first start, or before the time that it wanted to begin with: what came
// earlier was never meant for it. So do orders whose lane was removed: what came earlier was handled.
func (c *Consumer) baselines(ctx, work context.Context, newcomers []orphan) error {
	for part := range slices.Chunk(newcomers, c.Batch) {
		if ctx.Err() != nil || c.halted(work) {
			return nil
		}
		rows := make([]row, len(part))
		forgotten := map[string]bool{}
		for n, p := range part {
			rows[n] = p.row
			forgotten[p.eventID] = p.forgotten
		}
		items, bad, err := load(ctx, c.db.Read(), rows)
		if err != nil {
			return err
		}
		if err := c.buryRows(work, bad); err != nil {
			return err
		}
		begin := map[string]int64{}
		for _, i := range items {
			order, err := i.Order()
			if forgotten[i.ID] || err == nil && order.PlacedAt.Before(c.beginning.placedBefore()) {
				begin[i.Subject] = i.Version
				continue
			}
			if c.orphans.known == nil {
				c.orphans.known = map[string]bool{}
			}
			c.orphans.known[i.Subject] = true
		}
		orders, err := c.setBaselines(work, begin)
		if err != nil {
			return err
		}
		if len(orders) > 0 {
			c.handle(work, batch{orders: orders})
		}
	}
	return nil
}

// setBaselines sets the lanes just below the given versions, where that is still the first event.
func (c *Consumer) setBaselines(ctx context.Context, begin map[string]int64) (orders []string, err error) {
	if len(begin) == 0 {
		return nil, nil
	}
	all := make([]string, 0, len(begin))
	for order := range begin {
		all = append(all, order)
	}
	slices.Sort(all)
	err = c.again(ctx, func(ctx context.Context, tx *database.Tx) error {
		orders = nil
		lanes, err := lockLanes(ctx, tx, all, nil)
		if err != nil {
			return err
		}
		first, err := firstVersions(ctx, tx, all)
		if err != nil {
			return err
		}
		set := map[string]int64{}
		for _, order := range all {
			if lanes[order] == 0 && first[order] == begin[order] {
				set[order] = begin[order] - 1
				orders = append(orders, order)
			}
		}
		return advance(ctx, tx, set)
	})
	if err != nil {
		return nil, fmt.Errorf("set baselines: %w", err)
	}
	return orders, nil
}

func firstVersions(ctx context.Context, tx *database.Tx, orders []string) (map[string]int64, error) {
	condition, arg := tx.Dialect().AnyOf(1, orders)
	rows, err := tx.QueryContext(ctx, `SELECT order_id, min(version) FROM parked WHERE order_id `+condition+` GROUP BY order_id`, arg)
	if err != nil {
		return nil, fmt.Errorf("read first versions: %w", err)
	}
	first := map[string]int64{}
	err = each(rows, func() error {
		var order string
		var version int64
		if err := rows.Scan(&order, &version); err != nil {
			return err
		}
		first[order] = version
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read first versions: %w", err)
	}
	return first, nil
}
