package broker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Stored is a message as the stream keeps it.
type Stored struct {
	Subject  string
	Sequence uint64
	StoredAt time.Time
	Headers  map[string][]string
	Data     []byte
}

// Peek calls each for up to n messages of the stream from sequence from on, in order; topics chooses
// among them, empty means all. It reads them one by one from the store, so it changes nobody's position,
// and it stops where the stream ends.
func (c *Conn) Peek(ctx context.Context, queue string, topics []string, from uint64, n int, each func(Stored) error) error {
	stream, err := c.JS.Stream(ctx, queue)
	if err != nil {
		return lookUpError(queue, err)
	}
	if len(topics) == 0 {
		topics = []string{">"}
	}
	// The server takes a start of 0 for "the last one".
	for from = max(from, 1); n > 0; n-- {
		m, err := nextStored(ctx, stream, topics, from)
		if err != nil {
			return fmt.Errorf("read stream %s: %w", queue, err)
		}
		if m == nil {
			return nil
		}
		stored := Stored{Subject: m.Subject, Sequence: m.Sequence, StoredAt: m.Time.UTC(), Headers: m.Header, Data: m.Data}
		if err := each(stored); err != nil {
			return err
		}
		from = m.Sequence + 1
	}
	return nil
}

// nextStored returns the first message of the topics from a sequence on, or nil.
func nextStored(ctx context.Context, stream jetstream.Stream, topics []string, from uint64) (first *jetstream.RawStreamMsg, err error) {
	for _, topic := range topics {
		m, err := stream.GetMsg(ctx, from, jetstream.WithGetMsgSubject(topic))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if first == nil || m.Sequence < first.Sequence {
			first = m
		}
	}
	return first, nil
}
