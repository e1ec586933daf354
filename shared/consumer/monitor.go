package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/failpoint"
	"github.com/pillarbox/pillarbox/shared/group"
	"github.com/pillarbox/pillarbox/shared/logs"
	"github.com/pillarbox/pillarbox/shared/wait"
)

var errDrain = errors.New("drain deadline passed")

// startRetry is between attempts to begin; waitLog between the lines about it.
const (
	startRetry  = 500 * time.Millisecond
	waitLog     = 5 * time.Second
	warmTimeout = 5 * time.Second
)

// Run consumes until ctx ends, then drains: no new messages, work under way finishes to the deadline.
// It closes the subscriber. It may be called once.
func (c *Consumer) Run(ctx context.Context) error {
	// The database first: a cold pool would stall the first messages.
	if !c.persist(ctx, "consumer waits for its database", c.warm) {
		return c.closeSubscriber()
	}
	if c.beginning.from != "" && c.past != nil {
		c.past.Ask(c.beginning.since)
	}
	if c.seat != nil {
		c.pause.standby(true) // until this replica leads
	}
	var messages <-chan *message.Message
	subscribe := func(ctx context.Context) (err error) {
		// The end of ctx is not the end of the subscription: Finish and Close are.
		messages, err = c.sub.Subscribe(context.WithoutCancel(ctx), c.Topic)
		return err
	}
	if !c.persist(ctx, "consumer waits for its broker", subscribe) {
		return c.closeSubscriber()
	}
	c.begun.Store(true)
	c.log.InfoContext(ctx, "consumer started", "topic", c.Topic)

	// Work under way outlives ctx up to the drain deadline.
	work, cut := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cut(nil)
	var workers, helpers sync.WaitGroup
	helping, release := context.WithCancel(ctx)
	defer release()
	turn := make(chan struct{}, 1)
	more, noMore := context.WithCancel(context.WithoutCancel(ctx))
	defer noMore()
	for range c.Workers {
		workers.Go(func() { c.worker(more, work, messages, turn) })
	}
	helpers.Go(func() { c.watch(helping) })
	if c.seat != nil {
		helpers.Go(func() { c.seat.serve(helping) })
	}
	helpers.Go(func() { c.sweeper(helping, work) })
	helpers.Go(func() { c.redriver(helping, work) })

	ended := make(chan struct{})
	go func() { workers.Wait(); close(ended) }()
	var err error
	select {
	case <-ctx.Done():
	case <-ended:
		if ctx.Err() == nil {
			err = errors.New("subscription ended by itself")
		}
	}
	release()
	err = errors.Join(err, c.drain(cut, noMore, ended, &helpers))
	c.log.InfoContext(ctx, "consumer stopped")
	return err
}

// drain ends the pulling, lets the workers handle what is here already for a quarter of the drain
// time, gives back the rest, and lets the work under way go on to the deadline.
func (c *Consumer) drain(cut context.CancelCauseFunc, noMore context.CancelFunc, ended <-chan struct{}, helpers *sync.WaitGroup) error {
	c.stopping.Store(true)
	deadline := time.AfterFunc(c.Drain, func() { cut(errDrain) })
	defer deadline.Stop()
	c.seat.await() // the next leader begins as soon as what is in hand here is done
	c.sub.Finish()
	noMore()
	select {
	case <-ended:
	case <-time.After(c.Drain / 4):
		c.lastCall.Store(true)
	}
	err := c.closeSubscriber()
	<-ended
	helpers.Wait()
	return err
}

func (c *Consumer) closeSubscriber() error {
	if err := c.sub.Close(); err != nil {
		return fmt.Errorf("close subscriber: %w", err)
	}
	return nil
}

// persist repeats do until it succeeds; false when ctx ended first.
func (c *Consumer) persist(ctx context.Context, waiting string, do func(context.Context) error) bool {
	var logged time.Time
	for {
		err := do(ctx)
		if err == nil {
			return true
		}
		if ctx.Err() == nil && time.Since(logged) > waitLog {
			logged = time.Now()
			c.log.WarnContext(ctx, waiting, logs.Error, err)
		}
		if !wait.For(ctx, wait.Jitter(startRetry)) {
			return false
		}
	}
}

// warm opens connections and reads where the consumer begins.
func (c *Consumer) warm(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, warmTimeout)
	defer cancel()
	if c.db.Dialect().Postgres() {
		if err := c.db.Warm(ctx, c.Workers+1); err != nil {
			return err
		}
	}
	return c.db.Tx(ctx, func(ctx context.Context, tx *database.Tx) (err error) {
		c.beginning, err = c.begin(ctx, tx)
		return err
	})
}

// worker handles one group after the other. Only one worker at a time receives,
// and only when it is free, so that nothing lies about unhandled in this process.
func (c *Consumer) worker(more, work context.Context, messages <-chan *message.Message, turn chan struct{}) {
	for {
		group := c.collect(more, messages, turn)
		if len(group) == 0 {
			return
		}
		end := c.seat.begin()
		c.receive(work, group)
		end()
	}
}

// groupBytes ends a group of large messages.
const groupBytes = 4 << 20

// collect waits for one message and takes what else is there, up to Batch,
// without waiting. It returns none when there will be no more: the channel is
// closed, or more has ended and nothing is left that we may still begin.
func (c *Consumer) collect(more context.Context, messages <-chan *message.Message, turn chan struct{}) []*message.Message {
	turn <- struct{}{}
	defer func() { <-turn }()
	var first []*message.Message
	select {
	case m, ok := <-messages:
		if !ok {
			return nil
		}
		first = append(first, m)
	case <-more.Done():
	}
	bytes, counted := 0, 0
	return group.Take(first, messages, func(taken []*message.Message) bool {
		for ; counted < len(taken); counted++ {
			bytes += len(taken[counted].Payload)
		}
		return len(taken) >= c.Batch || bytes >= groupBytes || c.lastCall.Load()
	})
}

// receive decodes messages and handles them. What cannot be read becomes a dead letter first.
func (c *Consumer) receive(ctx context.Context, group []*message.Message) {
	var items []*item
	for _, m := range group {
		i, letter := decode(m, c.Name)
		if letter != nil {
			c.unreadable(ctx, m, letter)
			continue
		}
		items = append(items, i)
	}
	if c.Delivery == AtMostOnce && len(items) > 0 {
		items = c.acknowledgeFirst(ctx, items)
	}
	if len(items) > 0 {
		c.handle(ctx, batch{items: items})
	}
}

// unreadable keeps a message that is no event, and acknowledges it.
func (c *Consumer) unreadable(ctx context.Context, m *message.Message, l *letter) {
	err := errNotNow
	if !c.halted(ctx) {
		err = c.again(ctx, func(ctx context.Context, tx *database.Tx) error {
			if err := errors.Join(c.seat.check(ctx, tx), c.roomForLetter(ctx, tx, l.id)); err != nil {
				return err
			}
			return insertLetter(ctx, tx, l)
		})
	}
	if err != nil {
		m.Nack()
		if ctx.Err() == nil && !errors.Is(err, errNotNow) && !isConflict(err) && !c.overtaken(ctx, err) {
			c.stop(ctx, err)
		}
		return
	}
	failpoint.Hit(c.Name + ".dead_committed")
	m.Ack()
	c.metrics.events(resultDead, 1)
	c.log.ErrorContext(ctx, "message is no event and is a dead letter", logs.Sequence, l.sequence, logs.Reason, l.reason)
}

var errNotNow = errors.New("paused")
