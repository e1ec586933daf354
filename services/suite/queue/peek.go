package queue

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/pillarbox/pillarbox/services/suite/terminal"
	"github.com/pillarbox/pillarbox/shared/broker"
)

const maxPeek = 10_000

// peekCommand is "queue peek".
type peekCommand struct {
	topicArgument `embed:""`
	Count         int    `name:"count" short:"n" default:"10" help:"Most messages to show (1 to 10000)."`
	Consumer      string `name:"consumer" short:"c" placeholder:"NAME" help:"Begin with the first message that this consumer has not acknowledged (default: tool where that exists, else the queue's first)."`
	From          uint64 `name:"from" placeholder:"SEQUENCE" help:"Begin with this sequence."`
	Last          bool   `name:"last" help:"Show the last messages of the queue."`
	statuses      `kong:"-"`
}

// Run shows.
func (c *peekCommand) Run(all *Commands) error {
	chosen := 0
	for _, is := range []bool{c.Consumer != "", c.From != 0, c.Last} {
		if is {
			chosen++
		}
	}
	if chosen > 1 {
		return errors.New("--consumer, --from and --last are three places to begin: give one")
	}
	if c.Count < 1 || c.Count > maxPeek {
		return errors.New("--count must be 1 to 10000")
	}
	return all.run(c.do)
}

func (c *peekCommand) do(ctx context.Context, w *work) error {
	name, topics := c.queue()
	q, err := w.lookUp(ctx, name)
	if err != nil {
		return err
	}
	from, consumerTopics, err := c.begin(q)
	if err != nil {
		return err
	}
	if len(topics) == 0 {
		topics = consumerTopics
	}
	rows := [][]string{{"SEQUENCE", "AGE", "SUBJECT", "ID", "BYTES", "DATA"}}
	err = w.Peek(ctx, name, topics, from, c.Count, func(m broker.Stored) error {
		if w.json {
			return w.Object(recordOf(name, m))
		}
		data := string(m.Data[:min(len(m.Data), 8*terminal.Cell)]) // a table shows no more, so it need not be kept
		rows = append(rows, []string{
			number(m.Sequence), terminal.Ago(time.Since(m.StoredAt)), m.Subject, terminal.OrDash(idOf(m)), strconv.Itoa(len(m.Data)), data,
		})
		return nil
	})
	switch {
	case err != nil || w.json:
		return err
	case len(rows) == 1:
		w.Note("there is no message")
		return nil
	}
	return w.Table(rows)
}

// begin is the sequence of the first message to show, and what the consumer takes.
func (c *peekCommand) begin(q broker.QueueInfo) (from uint64, topics []string, err error) {
	switch {
	case c.From != 0:
		return c.From, nil, nil
	case c.Last:
		// Where messages were removed from the middle these are fewer.
		return q.LastSeq + 1 - min(uint64(c.Count), q.LastSeq), nil, nil
	case c.Consumer != "":
		i, err := consumerNamed(q, c.Consumer)
		return i.AckFloor + 1, i.Topics, err
	}
	if i, err := consumerNamed(q, DefaultConsumer); err == nil {
		return i.AckFloor + 1, i.Topics, nil
	}
	return q.FirstSeq, nil, nil
}
