package dispatch

import (
	"context"
	"sync"
)

// delivery remembers, from the receipt of one message to its acknowledgement,
// which handlers of its broadcasts are still to run. It dies with the process:
// after a crash the first handler is the first again, and every handler
// deduplicates for itself.
type delivery struct {
	mu sync.Mutex // guards open
	// open is per broadcast, so that they may be nested. A broadcast that is not in it has not begun, or has ended.
	open map[*broadcast][]int
}

type deliveryKey struct{}

// WithDelivery begins a delivery of one message: broadcasts that are called
// with the returned context, or one made from it, take up where the last call
// with it failed. Retry does it by itself; who retries by another way calls it
// once per message.
func WithDelivery(ctx context.Context) context.Context {
	return context.WithValue(ctx, deliveryKey{}, &delivery{})
}

// apart takes the delivery off a context that is to serve several messages.
func apart(ctx context.Context, messages int) context.Context {
	if messages < 2 || deliveryOf(ctx) == nil {
		return ctx
	}
	return context.WithValue(ctx, deliveryKey{}, (*delivery)(nil))
}

func deliveryOf(ctx context.Context) *delivery {
	d, _ := ctx.Value(deliveryKey{}).(*delivery)
	return d
}

// rest returns the handlers that are to run.
func (d *delivery) rest(b *broadcast) []int {
	if d == nil {
		return b.all
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if open, ok := d.open[b]; ok {
		return open
	}
	return b.all
}

// keep remembers what a call left to do; nothing when it left nothing.
func (d *delivery) keep(b *broadcast, open []int) {
	if d == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(open) == 0 {
		delete(d.open, b)
		return
	}
	if d.open == nil {
		d.open = make(map[*broadcast][]int, 1)
	}
	d.open[b] = open
}
