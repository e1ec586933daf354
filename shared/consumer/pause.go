package consumer

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pillarbox/pillarbox/shared/logs"
	"github.com/pillarbox/pillarbox/shared/wait"
)

// pause is the consumer's brake: while something that every event needs is
// down, nothing is pulled and nothing is tried, so no attempt is burnt.
//
//	going ──begin──▶ paused ──probe succeeded──▶ going
//
// A full table is the exception: there is nothing to probe, and the missing
// predecessors may only come when it goes on, so it is tried again after a wait.
type pause struct {
	sub     Subscriber
	log     *slog.Logger
	metrics metrics

	mu      sync.Mutex // guards idle, and orders the changes of it and of current with the calls of sub
	idle    bool       // mode single: another replica leads
	current atomic.Pointer[paused]
	began   chan struct{}
}

type paused struct {
	cause error
	full  bool
	since time.Time
}

func newPause(sub Subscriber, log *slog.Logger, m metrics) *pause {
	return &pause{sub: sub, log: log, metrics: m, began: make(chan struct{}, 1)}
}

func (p *pause) state() (on, full bool) {
	now := p.current.Load()
	return now != nil, now != nil && now.full
}

// begin stops pulling. When it is stopped already an outage replaces a full table as the cause.
func (p *pause) begin(ctx context.Context, cause error, full bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := p.current.Load(); now != nil {
		if now.full && !full {
			p.current.Store(&paused{cause, false, now.since})
		}
		return
	}
	p.current.Store(&paused{cause, full, time.Now()})
	p.sub.Pause()
	p.metrics.paused.Set(1)
	p.log.WarnContext(ctx, "consumer paused", logs.Error, cause)
	select {
	case p.began <- struct{}{}:
	default:
	}
}

func (p *pause) end(ctx context.Context) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.current.Load()
	p.current.Store(nil)
	if !p.idle {
		p.sub.Resume()
	}
	p.metrics.paused.Set(0)
	p.log.InfoContext(ctx, "consumer goes on", logs.Duration, time.Since(now.since))
}

// standby stops pulling, or goes on unless paused.
func (p *pause) standby(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle = on
	switch {
	case on:
		p.sub.Pause()
	case p.current.Load() == nil:
		p.sub.Resume()
	}
}

const (
	firstProbe = 100 * time.Millisecond
	// A dependency that is back is noticed within probeEvery; one whose probe
	// succeeds while the work fails is tried less and less often.
	probeEvery   = 3 * time.Second
	longestFlap  = 30 * time.Second
	probeTimeout = 10 * time.Second
)

// watch ends pauses, until ctx ends.
func (c *Consumer) watch(ctx context.Context) {
	wait := firstProbe
	ended := time.Time{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.pause.began:
		}
		if time.Since(ended) < 2*wait+time.Second {
			wait = min(2*wait, longestFlap)
		} else {
			wait = firstProbe
		}
		if !c.untilUsable(ctx, wait) {
			return
		}
		c.pause.end(ctx)
		ended = time.Now()
	}
}

// untilUsable waits until the dependencies answer; false when ctx ended first.
func (c *Consumer) untilUsable(ctx context.Context, pause time.Duration) bool {
	for wait.For(ctx, wait.Jitter(pause)) {
		if _, full := c.pause.state(); full {
			return true
		}
		if c.usable(ctx) == nil {
			return true
		}
		pause = min(2*pause, max(pause, probeEvery))
	}
	return false
}

func (c *Consumer) usable(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	if err := c.db.Ping(ctx); err != nil {
		return err
	}
	return guard(func() error { return c.effect.Probe(ctx) })
}
