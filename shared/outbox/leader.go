package outbox

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/nats-io/nats.go"
	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/failpoint"
	"github.com/pillarbox/pillarbox/shared/lease"
	"github.com/pillarbox/pillarbox/shared/logs"
)

const (
	compareEvery = time.Second
	purgeEvery   = 10 * time.Second
	// finishWithin is how long a round that has begun may go on after the leader was told to stop.
	finishWithin = 6 * time.Second
)

// leader is the relay during one term. Only its own goroutine uses it.
type leader struct {
	r    *Relay
	term int64
	log  *slog.Logger

	state    state // what the database knows, as last read or written
	loaded   bool
	witness  witness // the last message that the log knows
	unlisted bool    // a tail was being listed as lost when a leader died

	compared   time.Time // when the stream was last compared with state
	reconnects uint64    // of the connection at that time
	purged     time.Time
	careful    bool      // singles until a receipt is no duplicate: an earlier outcome is in doubt
	limit      int       // rows of the next batch: halved when one fails, doubled when one succeeds
	said       time.Time // when a row of failures was last logged; zero: the last pass succeeded
	progress   bool      // this pass has settled something

	replays replays

	onRoutes bool   // something may be under way on a route
	held     int64  // bytes in the stream: as last seen, and published since
	highest  uint64 // last sequence of the stream that this leader has seen
	idle     string // registered consumers that are not on the route, as logged

	consumers map[string]seen // the registered consumers' durables as the purge last saw them
	blocked   string          // why the purge does nothing, as logged
}

// run passes over the outbox until ctx ends or a write shows that another replica leads.
func (l *leader) run(ctx context.Context) error {
	reconnected := l.r.conn.NATS.StatusChanged(nats.CONNECTED)
	defer l.r.conn.NATS.RemoveStatusListener(reconnected)
	poll := time.NewTicker(l.r.c.Poll)
	defer poll.Stop()
	pauses := backoff.NewExponentialBackOff()
	pauses.InitialInterval, pauses.MaxInterval = 100*time.Millisecond, time.Second
	for {
		l.progress = false
		err := l.pass(ctx)
		if ctx.Err() != nil || errors.Is(err, lease.ErrLost) {
			return ignoreEnd(ctx, err)
		}
		l.report(ctx, err)
		if err != nil {
			l.compared, l.loaded = time.Time{}, false
			if l.progress {
				pauses.Reset()
			}
			if !sleep(ctx, pauses.NextBackOff(), reconnected) {
				return nil
			}
			continue
		}
		pauses.Reset()
		select {
		case <-ctx.Done():
			return nil
		case <-l.r.wake:
		case <-poll.C:
		case <-reconnected: // pass compares for that reason
		}
	}
}

// ignoreEnd drops what the end of ctx itself caused; a refused write is reported in any case.
func ignoreEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil && !errors.Is(err, lease.ErrLost) {
		return nil
	}
	return err
}

// complainEvery is the time between two log lines of one outage.
const complainEvery = 5 * time.Second

// report logs the first failure of a row of them, then one every few seconds, and its end.
func (l *leader) report(ctx context.Context, err error) {
	switch {
	case err == nil && !l.said.IsZero():
		l.said = time.Time{}
		l.log.InfoContext(ctx, "relay goes on")
	case err != nil:
		l.r.metrics.errors.Inc()
		if errors.Is(err, broker.ErrFull) {
			l.r.metrics.full.Inc()
			l.purged = time.Time{} // perhaps there is something to purge
		}
		if time.Since(l.said) >= complainEvery {
			l.said = time.Now()
			l.log.WarnContext(ctx, "relay waits and tries again", logs.Error, err)
		}
	}
}

// sleep returns after d or when early has something; false means that ctx has ended.
func sleep[T any](ctx context.Context, d time.Duration, early <-chan T) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
	case <-early:
	}
	return true
}

// pass publishes until nothing is left. Each step of it may be repeated.
func (l *leader) pass(ctx context.Context) error {
	for ctx.Err() == nil {
		if !l.loaded {
			if err := l.load(ctx); err != nil {
				return err
			}
		}
		if l.toCompare() {
			if err := l.compare(ctx); err != nil {
				return err
			}
		}
		if l.toPurge() {
			l.purged = time.Now()
			if err := l.purge(ctx); err != nil {
				return err
			}
			l.r.step("purge.done")
		}
		more, err := l.round(ctx)
		if err != nil {
			return err
		}
		if more && !l.replays.due() {
			continue
		}
		if again, err := l.replay(ctx); err != nil || !more && !again {
			return err
		}
	}
	return nil
}

func (l *leader) toCompare() bool {
	return time.Since(l.compared) >= compareEvery || l.r.conn.NATS.Stats().Reconnects != l.reconnects
}

func (l *leader) toPurge() bool { return time.Since(l.purged) >= l.r.purgeEvery }

// due: something comes before the next page.
func (l *leader) due() bool { return l.toCompare() || l.toPurge() || l.replays.due() }

// round publishes the next page, and those after it for as long as each goes whole and nothing else is due. While one is
// being published the one before it is written down, and behind a full one the next is read. What the broker
// confirmed is written down also when ctx ends in the middle: it should not be left for a successor to repeat.
func (l *leader) round(ctx context.Context) (more bool, err error) {
	p, err := l.page(ctx)
	if err != nil {
		return false, err
	}
	if p.empty() {
		if l.state.refilling() {
			return true, l.endRefill(ctx)
		}
		return false, nil
	}
	finish, cancel := outlive(ctx, finishWithin)
	defer cancel()
	written := begin(func() error { return nil }) // the page before
	for gone := (page{}); ; {
		l.r.step("relay.read")
		following := l.follow(finish, p, gone)
		out := l.publish(ctx, finish, p.items)
		l.publishedBytes(p.items, out)
		l.r.step("relay.published")
		err := written()
		if err == nil {
			done := p
			written = begin(func() error { return l.writeDown(finish, done, out) })
			if next := following(); !next.empty() && out.whole() && ctx.Err() == nil && !l.due() {
				gone, p = p, next
				continue
			}
			err = written()
		}
		cancel()
		following() // nothing goes on when this returns
		l.progress = l.progress || err == nil && out.pending > 0
		return err == nil, errors.Join(err, out.err)
	}
}

func (l *leader) writeDown(ctx context.Context, p page, out outcome) error {
	if err := l.settle(ctx, p, out); err != nil {
		return err
	}
	l.r.step("relay.settled")
	return nil
}

// follow returns a function for the page after p, which is being published, while gone may still be being
// written down. It is read at once when p is full, otherwise when it is asked for. It is empty when there is none, or when
// that cannot be told: then the next round reads it.
func (l *leader) follow(ctx context.Context, p, gone page) func() page {
	most, err := l.budget(ctx)
	if err != nil || p.refill || l.careful {
		return func() page { return page{} }
	}
	read := func() page {
		items, err := l.waiting(ctx, most, append(seqsOf(gone.items), seqsOf(p.items)...))
		if err == nil {
			err = l.readPayloads(ctx, items)
		}
		if err != nil {
			return page{}
		}
		return page{items: items}
	}
	if len(p.items) < maxRows {
		return sync.OnceValue(read)
	}
	return begin(read)
}

// begin runs do in the background. The function that it returns waits for the result, any number of times.
func begin[T any](do func() T) (wait func() T) {
	done := make(chan T, 1)
	go func() { done <- do() }()
	return sync.OnceValue(func() T { return <-done })
}

// outlive returns a context that ends only some time after ctx has.
func outlive(ctx context.Context, by time.Duration) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	context.AfterFunc(ctx, func() { time.AfterFunc(by, cancel) })
	return longer, cancel
}

// step marks a place between two durable steps, where crash tests stop.
func (r *Relay) step(name string) {
	failpoint.Hit("store." + name)
	if r.hook != nil {
		r.hook(name)
	}
}
