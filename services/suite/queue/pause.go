package queue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pillarbox/pillarbox/shared/broker"
)

// untilResumed is the end of a pause that has none.
var untilResumed = time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC)

// which names the consumers that a pause or its end is about.
type which struct {
	Queue    string `arg:"" help:"Queue."`
	Consumer string `name:"consumer" short:"c" placeholder:"NAME" help:"Only this consumer."`
}

// pauseCommand is "queue pause".
type pauseCommand struct {
	which    `embed:""`
	For      time.Duration `name:"for" placeholder:"DURATION" help:"End by itself after so long, such as 30m (default: at resume)."`
	statuses `kong:"-"`
}

// Run pauses.
func (c *pauseCommand) Run(all *Commands) error {
	if c.For < 0 {
		return errors.New("--for must not be negative")
	}
	until := untilResumed
	if c.For > 0 {
		until = time.Now().Add(c.For).UTC()
	}
	return all.run(func(ctx context.Context, w *work) error {
		return c.each(ctx, w, "paused", &until, func(i broker.ConsumerInfo) error {
			return w.Pause(ctx, i.Queue, i.Durable, until)
		})
	})
}

// resumeCommand is "queue resume".
type resumeCommand struct {
	which    `embed:""`
	statuses `kong:"-"`
}

// Run resumes.
func (c *resumeCommand) Run(all *Commands) error {
	return all.run(func(ctx context.Context, w *work) error {
		return c.each(ctx, w, "resumed", nil, func(i broker.ConsumerInfo) error {
			return w.Resume(ctx, i.Queue, i.Durable)
		})
	})
}

// each does something to the chosen consumers and reports each.
func (c which) each(ctx context.Context, w *work, done string, until *time.Time, do func(broker.ConsumerInfo) error) error {
	q, err := w.lookUp(ctx, c.Queue)
	if err != nil {
		return err
	}
	chosen := q.Consumers
	if c.Consumer != "" {
		if _, err := consumerNamed(q, c.Consumer); err != nil {
			return err
		}
		chosen = consumersNamed(q, c.Consumer)
	}
	if len(chosen) == 0 {
		return fmt.Errorf("queue %q has no consumer", q.Name)
	}
	for _, i := range chosen {
		if err := do(i); err != nil {
			return err
		}
		if w.json {
			err = w.Object(struct {
				Queue       string     `json:"queue"`
				Consumer    string     `json:"consumer"`
				Durable     string     `json:"durable"`
				PausedUntil *time.Time `json:"paused_until"`
			}{i.Queue, i.Group, i.Durable, until})
		} else {
			err = w.Line("%s of %s is %s", i.Group, i.Queue, done)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
