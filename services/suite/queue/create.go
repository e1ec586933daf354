package queue

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/pillarbox/pillarbox/shared/broker"
)

// createCommand is "queue create". What is there already stays as it is.
type createCommand struct {
	topicArgument `embed:""`
	Consumer      []string `name:"consumer" short:"c" placeholder:"NAME" help:"Also make a consumer that begins with the queue's first message; may be repeated. Of queue.topic it takes that topic only."`
	MaxBytes      int64    `name:"max-bytes" default:"67108864" help:"Size in bytes; a full queue refuses new messages and drops none (1024 to 1099511627776)."`
	Replicas      int      `name:"replicas" default:"1" help:"Copies in the broker's cluster (1, 3 or 5)."`
	statuses      `kong:"-"`
}

// Run makes the data folder too, as suite run does.
func (c *createCommand) Run(all *Commands) error {
	if c.MaxBytes < 1024 || c.MaxBytes > 1<<40 {
		return errors.New("--max-bytes must be 1024 to 1099511627776")
	}
	if c.Replicas != 1 && c.Replicas != 3 && c.Replicas != 5 {
		return errors.New("--replicas must be 1, 3 or 5")
	}
	queue, _ := c.queue()
	if err := checkName("queue", queue); err != nil {
		return err
	}
	for _, name := range c.Consumer {
		if err := checkName("consumer", name); err != nil {
			return err
		}
	}
	if all.NATS == "" {
		if err := os.MkdirAll(all.Data, 0o755); err != nil {
			return fmt.Errorf("data folder: %w", err)
		}
	}
	return all.run(c.do)
}

func (c *createCommand) do(ctx context.Context, w *work) error {
	queue, topics := c.queue()
	_, err := w.Queue(ctx, queue)
	made := errors.Is(err, broker.ErrNoStream)
	if made {
		_, err = w.EnsureStream(ctx, broker.StreamConfig{Name: queue, MaxBytes: c.MaxBytes, Replicas: c.Replicas})
	}
	if err != nil {
		return err
	}
	for _, name := range c.Consumer {
		if _, err := w.EnsureConsumer(ctx, queue, name, topics); err != nil {
			return err
		}
	}
	if w.json {
		q, err := w.Queue(ctx, queue)
		if err != nil {
			return err
		}
		record, err := w.queueRecord(ctx, q)
		if err != nil {
			return err
		}
		return w.Object(record)
	}
	if !made {
		return w.Line("queue %s exists already", queue)
	}
	return w.Line("queue %s made", queue)
}
