package outbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/logs"
)

// result is what became of one item: confirmed with a sequence, dead, held behind
// a dead one, or (the zero value) still waiting.
type result struct {
	sequence  uint64
	duplicate bool // it was in the stream already
	dead      string
	held      bool
}

// outcome is what became of a page. err ended it; what has no result waits.
type outcome struct {
	results   []result
	confirmed int
	pending   int // index of the first item without a result
	err       error
}

// whole reports whether all of it is in the stream, none of it in doubt.
func (o outcome) whole() bool { return o.err == nil && o.confirmed == len(o.results) }

// publish publishes the items in order until one fails or stop ends; a publish
// that has begun goes on under ctx.
func (l *leader) publish(stop, ctx context.Context, items []item) outcome {
	out := outcome{results: make([]result, len(items))}
	queue := make([]int, len(items))
	for n := range items {
		queue[n] = n
	}
	for len(queue) > 0 && out.err == nil && stop.Err() == nil {
		n := min(l.limit, len(queue))
		if l.careful || n <= broker.FewMessages {
			queue = l.publishOne(ctx, items, queue, &out)
		} else {
			queue = l.publishBatch(ctx, items, queue, n, &out)
		}
	}
	out.pending = len(items)
	if len(queue) > 0 {
		out.pending = queue[0]
	}
	return out
}

// publishOne publishes the first of the queue and returns what is left of it.
func (l *leader) publishOne(ctx context.Context, items []item, queue []int, out *outcome) []int {
	first := queue[0]
	receipt, err := l.r.pub.PublishOne(ctx, l.r.c.topic(), l.message(items[first]))
	switch {
	case err == nil:
		// A duplicate's receipt has the sequence of the message that is there.
		out.results[first].sequence, out.results[first].duplicate = receipt.Sequence, receipt.Duplicate
		out.confirmed++
		l.careful = l.careful && receipt.Duplicate
		l.limit = min(2*l.limit, maxRows)
		return queue[1:]
	case errors.Is(err, broker.ErrRefused):
		l.log.ErrorContext(ctx, "event refused for ever, its order is held",
			logs.EventID, items[first].eventID, logs.Key, items[first].orderID, logs.Error, err)
		out.results[first].dead = err.Error()
		return holdOrder(items, queue, out)
	default:
		l.failed(err, out)
		return queue
	}
}

// publishBatch publishes the first n of the queue atomically.
func (l *leader) publishBatch(ctx context.Context, items []item, queue []int, n int, out *outcome) []int {
	batch := make([]*message.Message, n)
	for i, at := range queue[:n] {
		batch[i] = l.message(items[at])
	}
	last, err := l.r.pub.PublishAtomic(ctx, l.r.c.topic(), batch)
	switch {
	case err == nil:
		for i, at := range queue[:n] {
			out.results[at].sequence = last - uint64(n-1-i)
		}
		out.confirmed += n
		l.r.metrics.batches.Inc()
		l.limit = min(2*l.limit, maxRows)
		return queue[n:]
	case errors.Is(err, broker.ErrDuplicate):
		l.careful = true // nothing of it was stored: the singles tell which are there
	case errors.Is(err, broker.ErrRefused):
		l.limit = n / 2 // one of them is refused: close in on it
	default:
		l.failed(err, out)
		l.limit = max(n/2, 1) // perhaps it was too much for the time-out
	}
	return queue
}

// failed ends the page. Unless it is certain that nothing was stored, batches would now
// be refused for a duplicate, and a single tells what is there.
func (l *leader) failed(err error, out *outcome) {
	out.err = fmt.Errorf("publish: %w", err)
	if !errors.Is(err, broker.ErrFull) && !errors.Is(err, broker.ErrNoStream) && !errors.Is(err, broker.ErrDisconnected) {
		l.careful = true
	}
}

// holdOrder takes the queue's first item, which is dead, and all later ones of its order out of the queue.
func holdOrder(items []item, queue []int, out *outcome) []int {
	order := items[queue[0]].orderID
	var rest []int
	for _, at := range queue[1:] {
		if items[at].orderID == order {
			out.results[at].held = true
			continue
		}
		rest = append(rest, at)
	}
	return rest
}

// message is a fresh one for each try.
func (i item) message() *message.Message {
	m := message.NewMessage(i.eventID, i.payload)
	m.Metadata.Set(broker.MetaPublishID, i.publishID)
	return m
}
