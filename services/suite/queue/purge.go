package queue

import (
	"context"
	"fmt"
	"strings"

	"github.com/pillarbox/pillarbox/shared/broker"
)

// purgeCommand is "queue purge".
type purgeCommand struct {
	Queue        string `arg:"" help:"Queue."`
	Acknowledged bool   `name:"acknowledged" xor:"what" help:"Only what every consumer has acknowledged."`
	Keep         uint64 `name:"keep" xor:"what" placeholder:"N" help:"Keep the last N sequences."`
	Before       uint64 `name:"before" xor:"what" placeholder:"SEQUENCE" help:"Only messages below this sequence."`
	Yes          bool   `name:"yes" short:"y" help:"Do not ask."`
	statuses     `kong:"-"`
}

// Run purges.
func (c *purgeCommand) Run(all *Commands) error {
	return all.run(func(ctx context.Context, w *work) error {
		w.yes = c.Yes
		return c.do(ctx, w)
	})
}

func (c *purgeCommand) do(ctx context.Context, w *work) error {
	q, err := w.lookUp(ctx, c.Queue)
	if err != nil {
		return err
	}
	before, err := c.before(q)
	if err != nil {
		return err
	}
	if q.Messages > 0 && before > q.FirstSeq {
		if err := w.confirm(ctx, "Purge %s: its messages from %d to %d are removed for good.%s",
			q.Name, q.FirstSeq, before-1, unacknowledged(q, before)); err != nil {
			return err
		}
	}
	gone, err := w.Purge(ctx, c.Queue, before)
	if err != nil {
		return err
	}
	if w.json {
		return w.Object(struct {
			Queue  string `json:"queue"`
			Purged uint64 `json:"purged"`
		}{c.Queue, gone})
	}
	return w.Line("%d messages removed from %s", gone, c.Queue)
}

// before is the first sequence that stays. What comes after the look at the queue stays always.
func (c *purgeCommand) before(q broker.QueueInfo) (uint64, error) {
	switch {
	case c.Before != 0:
		return min(c.Before, q.LastSeq+1), nil
	case c.Keep != 0:
		return q.LastSeq + 1 - min(c.Keep, q.LastSeq), nil
	case c.Acknowledged:
		if len(q.Consumers) == 0 {
			return 0, fmt.Errorf("queue %q has no consumer that could have acknowledged anything", q.Name)
		}
		before := q.LastSeq + 1
		for _, i := range q.Consumers {
			if !i.Idle() {
				before = min(before, i.AckFloor+1)
			}
		}
		return before, nil
	}
	return q.LastSeq + 1, nil
}

// unacknowledged names the consumers that lose messages.
func unacknowledged(q broker.QueueInfo, before uint64) string {
	var lose []string
	for _, i := range q.Consumers {
		if !i.Idle() && i.AckFloor+1 < before {
			lose = append(lose, i.Group)
		}
	}
	if len(lose) == 0 {
		return ""
	}
	return " Not acknowledged yet, so lost to them: messages of " + strings.Join(lose, ", ") + "."
}
