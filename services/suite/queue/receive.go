package queue

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pillarbox/pillarbox/services/suite/terminal"
	"github.com/pillarbox/pillarbox/shared/broker"
)

// receiveCommand is "queue receive".
type receiveCommand struct {
	topicArgument `embed:""`
	Consumer      string        `name:"consumer" short:"c" placeholder:"NAME" default:"tool" help:"Consumer as which to receive. tool is made when missing, and begins with the queue's first message."`
	Count         int           `name:"count" short:"n" default:"1" help:"End after so many messages (1 and more)."`
	Follow        bool          `name:"follow" short:"f" help:"Go on until stopped, or until --timeout; --count does not count then."`
	Timeout       time.Duration `name:"timeout" short:"t" placeholder:"DURATION" help:"End when no message came for so long, such as 1s or 500ms (default: wait for ever)."`
	Raw           bool          `name:"raw" help:"Write the messages' bytes and nothing else, on a terminal too."`
	Yes           bool          `name:"yes" short:"y" help:"Do not ask before taking messages from a consumer that a program reads."`
}

// Help tells what is written and what the exit status means.
func (receiveCommand) Help() string {
	return `A message is acknowledged after it was written. Into a pipe or file its bytes go as they are, with a line end
behind those that have none; on a terminal, characters that would steer it are escaped.

Exit status: 0 when at least one message came, 1 on an error, when not confirmed or when stopped before a message
came, 3 when none came before --timeout.`
}

// timedOut is a wait that ended without a message.
type timedOut struct{ text string }

func (t timedOut) Error() string { return t.text }

// ExitStatus tells a timeout from an error.
func (timedOut) ExitStatus() int { return 3 }

// Run receives.
func (c *receiveCommand) Run(all *Commands) error {
	if c.Count < 1 {
		return errors.New("--count must be 1 or more")
	}
	if c.Timeout < 0 {
		return errors.New("--timeout must not be negative")
	}
	if c.Raw && all.JSON {
		return errors.New("--raw and --json are two forms: give one")
	}
	return all.run(func(ctx context.Context, w *work) error {
		w.yes = c.Yes
		return c.do(ctx, w)
	})
}

func (c *receiveCommand) do(ctx context.Context, w *work) error {
	i, err := c.consumer(ctx, w)
	if err != nil {
		return err
	}
	if !i.PausedUntil.IsZero() {
		w.Note("consumer %s is paused until %s", terminal.Printable(i.Group, terminal.Cell), i.PausedUntil.Format(time.RFC3339))
	}
	source := &source{w: w, at: i}
	defer source.close()
	came := 0
	for ; c.Follow || came < c.Count; came++ {
		m, err := c.next(ctx, source)
		switch {
		case err == nil:
		case ctx.Err() != nil && c.Follow:
			return nil // being stopped is how following ends
		case ctx.Err() != nil:
			return fmt.Errorf("interrupted after %d messages", came)
		case errors.Is(err, context.DeadlineExceeded) && came > 0:
			w.Note("%d messages came, then none for %s", came, c.Timeout)
			return nil
		case errors.Is(err, context.DeadlineExceeded):
			return timedOut{fmt.Sprintf("no message came from %s within %s", c.Topic, c.Timeout)}
		default:
			return err
		}
		if err := c.write(w, i, m); err != nil {
			return errors.Join(err, m.Nack())
		}
		if err := acknowledge(ctx, m); err != nil {
			err = fmt.Errorf("message %d was printed and will come again: %w", m.Sequence, err)
			if !c.Follow {
				return err
			}
			w.Note("%v", err)
		}
	}
	return nil
}

// consumer finds the consumer to receive as.
func (c *receiveCommand) consumer(ctx context.Context, w *work) (broker.ConsumerInfo, error) {
	queue, topics := c.queue()
	q, err := w.lookUp(ctx, queue)
	if err != nil {
		return broker.ConsumerInfo{}, err
	}
	i, err := consumerNamed(q, c.Consumer)
	if err != nil && c.Consumer == DefaultConsumer {
		return w.EnsureConsumer(ctx, queue, DefaultConsumer, topics)
	}
	switch {
	case err != nil:
		return i, err
	case len(topics) > 0 && !slices.Equal(topics, i.Topics):
		return i, fmt.Errorf("consumer %q takes other topics of the queue than %q: make one with suite queue create", c.Consumer, c.Topic)
	case !i.Tool:
		return i, w.confirm(ctx, "Receive as consumer %s of %s: the program that reads it will not get these messages.", i.Group, queue)
	}
	return i, nil
}

func (c *receiveCommand) next(ctx context.Context, s *source) (broker.Received, error) {
	if c.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.Timeout)
		defer cancel()
	}
	return s.next(ctx)
}

// acknowledge also works after a stop: the message was printed.
func acknowledge(ctx context.Context, m broker.Received) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), apiTimeout)
	defer cancel()
	return m.Ack(ctx)
}

func (c *receiveCommand) write(w *work, i broker.ConsumerInfo, m broker.Received) error {
	if w.json {
		record := recordOf(i.Queue, m.Stored)
		record.Consumer, record.Deliveries = i.Group, m.Deliveries
		return w.Object(record)
	}
	data := m.Data
	if !c.Raw {
		if w.Screen {
			data = []byte(terminal.Escape(string(data), terminal.NoLimit, "\n\t"))
		}
		if !bytes.HasSuffix(data, []byte("\n")) {
			data = append(data[:len(data):len(data)], '\n')
		}
	}
	return w.Bytes(data)
}
