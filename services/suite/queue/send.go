package queue

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/pillarbox/pillarbox/shared/broker"
)

// headerRoom is what headers and subject may take of the broker's limit of one message.
const headerRoom = 4 << 10

// sendCommand is "queue send".
type sendCommand struct {
	topicArgument `embed:""`
	File          string            `arg:"" optional:"" help:"File to send; - or none: standard input."`
	Lines         bool              `name:"lines" help:"Send each line as a message of its own."`
	ID            string            `name:"id" help:"Publish id: the queue stores one id once within two minutes. With --lines, a number is added. Default: a new one."`
	Header        map[string]string `name:"header" short:"H" mapsep:"none" placeholder:"NAME=VALUE" help:"Header of the messages; may be repeated."`
	statuses      `kong:"-"`
}

// Run sends.
func (c *sendCommand) Run(all *Commands) error {
	for name := range c.Header {
		if strings.HasPrefix(strings.ToLower(name), "nats-") {
			return fmt.Errorf("header %q is the broker's own", name)
		}
	}
	return all.run(c.do)
}

func (c *sendCommand) do(ctx context.Context, w *work) (err error) {
	name, _ := c.queue()
	if _, err := w.lookUp(ctx, name); err != nil {
		return err
	}
	in := w.In
	if c.File != "" && c.File != "-" {
		f, err := os.Open(c.File)
		if err != nil {
			return err
		}
		defer f.Close() // only read from
		in = f
	} else if w.Person {
		w.Note("type the message, then Ctrl-D")
	}
	publisher := broker.NewPublisher(w.Conn, broker.PublisherConfig{})
	defer func() { err = errors.Join(err, publisher.Close()) }()
	messages := w.read(ctx, in, c.Lines)
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case m, more := <-messages:
			if !more {
				return nil
			}
			if m.err != nil {
				return m.err
			}
			if err := c.send(ctx, w, publisher, m.data, n); err != nil {
				return err
			}
		}
	}
}

func (c *sendCommand) send(ctx context.Context, w *work, p *broker.Publisher, data []byte, n int) error {
	queue, _ := c.queue()
	id := c.ID
	switch {
	case id == "":
		id = uuid.Must(uuid.NewV7()).String()
	case c.Lines:
		id += "-" + strconv.Itoa(n)
	}
	m := message.NewMessage(id, data)
	for name, value := range c.Header {
		m.Metadata.Set(name, value)
	}
	receipt, err := p.PublishOne(ctx, c.Topic, m)
	if err != nil {
		return unsent(err, id, n)
	}
	if w.json {
		return w.Object(struct {
			Queue     string `json:"queue"`
			Subject   string `json:"subject"`
			Sequence  uint64 `json:"sequence"`
			ID        string `json:"id"`
			Duplicate bool   `json:"duplicate"`
			Bytes     int    `json:"bytes"`
		}{queue, c.Topic, receipt.Sequence, id, receipt.Duplicate, len(data)})
	}
	if receipt.Duplicate {
		return w.Line("%s had id %s already, as sequence %d", queue, id, receipt.Sequence)
	}
	return w.Line("sent to %s as sequence %d", queue, receipt.Sequence)
}

// unsent says whether trying again may make two of one.
func unsent(err error, id string, n int) error {
	for _, sure := range []error{broker.ErrFull, broker.ErrRefused, broker.ErrNoStream, broker.ErrDisconnected} {
		if errors.Is(err, sure) {
			return fmt.Errorf("message %d was not sent: %w", n, err)
		}
	}
	return fmt.Errorf("message %d may or may not be stored, send it again with --id %s: %w", n, id, err)
}

// input is one message to send, or why there is no further one.
type input struct {
	data []byte
	err  error
}

// read hands out what stands in in: a message per line, or one. Reading cannot be interrupted, so it has a goroutine
// of its own, which ends with in or with ctx.
func (w *work) read(ctx context.Context, in io.Reader, lines bool) <-chan input {
	most := int(w.NATS.MaxPayload()) - headerRoom
	out := make(chan input)
	emit := func(i input) bool {
		select {
		case out <- i:
			return true
		case <-ctx.Done():
			return false
		}
	}
	tooLong := fmt.Errorf("a message may have %d bytes, and this has more", most)
	go func() {
		defer close(out)
		if !lines {
			data, err := io.ReadAll(io.LimitReader(in, int64(most)+1))
			if err == nil && len(data) > most {
				err = tooLong
			}
			emit(input{data, err})
			return
		}
		scanner := bufio.NewScanner(in)
		scanner.Buffer(nil, most)
		for scanner.Scan() {
			if !emit(input{data: bytes.Clone(scanner.Bytes())}) {
				return
			}
		}
		err := scanner.Err()
		if errors.Is(err, bufio.ErrTooLong) {
			err = tooLong
		}
		if err != nil {
			emit(input{err: err})
		}
	}()
	return out
}
