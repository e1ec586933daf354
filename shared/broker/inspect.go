package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// ErrNoConsumer: the stream has no such durable.
var ErrNoConsumer = errors.New("no such consumer")

// metaTool marks a durable that Consume made: nobody but operators reads it.
const metaTool = "pillarbox-tool"

// QueueInfo is a stream with its durables, as operators see it.
type QueueInfo struct {
	Name     string
	Subjects []string
	StreamState
	Oldest    time.Time // when the first message was stored
	MaxBytes  int64     // 0: unlimited
	Replicas  int
	Consumers []ConsumerInfo // by name
}

// ConsumerInfo is a durable with its figures.
type ConsumerInfo struct {
	Queue      string
	Durable    string
	Group      string   // the durable's name where nobody wrote down a group
	Generation int64    // of the stream when the durable was made
	Topics     []string // what it takes; empty: the whole stream
	Tool       bool     // made by Consume
	Created    time.Time

	Depth       uint64 // messages that nobody has been given yet
	InFlight    int    // given out and not acknowledged
	Redelivered int    // of those, given out more than once
	Readers     int    // pull requests that stand
	AckFloor    uint64 // stream sequence up to which everything is acknowledged
	Delivered   uint64 // last stream sequence given out
	PausedUntil time.Time
}

// Idle reports that the consumer has acknowledged everything.
func (i ConsumerInfo) Idle() bool { return i.Depth == 0 && i.InFlight == 0 }

// Queues returns all streams with their durables, by name.
func (c *Conn) Queues(ctx context.Context) ([]QueueInfo, error) {
	list := c.JS.ListStreams(ctx)
	var found []QueueInfo
	for info := range list.Info() {
		found = append(found, queueOf(info))
	}
	if err := list.Err(); err != nil {
		return nil, fmt.Errorf("list streams: %w", err)
	}
	slices.SortFunc(found, func(a, b QueueInfo) int { return strings.Compare(a.Name, b.Name) })
	kept := found[:0]
	for _, q := range found {
		var err error
		if q.Consumers, err = c.consumers(ctx, q.Name); errors.Is(err, ErrNoStream) {
			continue // removed meanwhile
		} else if err != nil {
			return nil, err
		}
		kept = append(kept, q)
	}
	return kept, nil
}

// Queue returns one stream with its durables, or ErrNoStream.
func (c *Conn) Queue(ctx context.Context, name string) (QueueInfo, error) {
	stream, err := c.JS.Stream(ctx, name)
	if err != nil {
		return QueueInfo{}, lookUpError(name, err)
	}
	q := queueOf(stream.CachedInfo())
	q.Consumers, err = c.consumers(ctx, name)
	return q, err
}

func queueOf(i *jetstream.StreamInfo) QueueInfo {
	return QueueInfo{
		Name: i.Config.Name, Subjects: i.Config.Subjects, StreamState: stateOf(i),
		Oldest: i.State.FirstTime.UTC(), MaxBytes: max(i.Config.MaxBytes, 0), Replicas: i.Config.Replicas,
	}
}

func (c *Conn) consumers(ctx context.Context, queue string) ([]ConsumerInfo, error) {
	stream, err := c.JS.Stream(ctx, queue)
	if err != nil {
		return nil, lookUpError(queue, err)
	}
	list := stream.ListConsumers(ctx)
	var found []ConsumerInfo
	for info := range list.Info() {
		found = append(found, consumerOf(info))
	}
	if err := list.Err(); err != nil {
		return nil, fmt.Errorf("list consumers of %s: %w", queue, err)
	}
	slices.SortFunc(found, func(a, b ConsumerInfo) int { return strings.Compare(a.Durable, b.Durable) })
	return found, nil
}

func consumerOf(i *jetstream.ConsumerInfo) ConsumerInfo {
	found := ConsumerInfo{
		Queue: i.Stream, Durable: i.Name, Group: i.Config.Metadata[metaGroup], Topics: topicsOf(i.Config),
		Tool: i.Config.Metadata[metaTool] != "", Created: i.Created.UTC(),
		Depth: i.NumPending, InFlight: i.NumAckPending, Redelivered: i.NumRedelivered, Readers: i.NumWaiting,
		AckFloor: i.AckFloor.Stream, Delivered: i.Delivered.Stream,
	}
	if found.Group == "" {
		found.Group = i.Name
	}
	// A durable that somebody made by hand has no generation, which is 0.
	found.Generation, _ = strconv.ParseInt(i.Config.Metadata[metaGeneration], 10, 64)
	if i.Paused && i.Config.PauseUntil != nil {
		found.PausedUntil = i.Config.PauseUntil.UTC()
	}
	return found
}

func lookUpError(queue string, err error) error {
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("%w: %s", ErrNoStream, queue)
	}
	return fmt.Errorf("look up stream %s: %w", queue, err)
}

// Oldest returns when the oldest message that the consumer has not acknowledged was stored, or false when there is
// none. It reads that message.
func (c *Conn) Oldest(ctx context.Context, i ConsumerInfo) (time.Time, bool, error) {
	if i.Idle() {
		return time.Time{}, false, nil
	}
	var at time.Time
	err := c.Peek(ctx, i.Queue, i.Topics, i.AckFloor+1, 1, func(m Stored) error {
		at = m.StoredAt
		return nil
	})
	return at, !at.IsZero(), err
}

// Pause makes the server give out nothing more from the durable until then; processes that
// read it wait meanwhile. Resume ends it before.
func (c *Conn) Pause(ctx context.Context, queue, durable string, until time.Time) error {
	if _, err := c.JS.PauseConsumer(ctx, queue, durable, until); err != nil {
		return consumerError("pause", durable, err)
	}
	return nil
}

// Resume ends Pause.
func (c *Conn) Resume(ctx context.Context, queue, durable string) error {
	if _, err := c.JS.ResumeConsumer(ctx, queue, durable); err != nil {
		return consumerError("resume", durable, err)
	}
	return nil
}

// RemoveConsumer deletes a durable, and with it what it has acknowledged.
func (c *Conn) RemoveConsumer(ctx context.Context, queue, durable string) error {
	if err := c.JS.DeleteConsumer(ctx, queue, durable); err != nil {
		return consumerError("delete", durable, err)
	}
	return nil
}

func consumerError(doing, durable string, err error) error {
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		return fmt.Errorf("%s: %w: %s", doing, ErrNoConsumer, durable)
	}
	return fmt.Errorf("%s consumer %s: %w", doing, durable, err)
}

// RemoveQueue deletes a stream with all its messages and durables.
func (c *Conn) RemoveQueue(ctx context.Context, queue string) error {
	if err := c.JS.DeleteStream(ctx, queue); errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("%w: %s", ErrNoStream, queue)
	} else if err != nil {
		return fmt.Errorf("delete stream %s: %w", queue, err)
	}
	return nil
}

// Purge removes the messages below sequence before, whether acknowledged or not, and returns how many there were.
func (c *Conn) Purge(ctx context.Context, queue string, before uint64) (uint64, error) {
	stream, err := c.JS.Stream(ctx, queue)
	if err != nil {
		return 0, lookUpError(queue, err)
	}
	was := stream.CachedInfo().State
	// A purge beyond the end would raise the stream's last sequence; sequence 0 would mean all of it.
	if before = min(before, was.LastSeq+1); before <= was.FirstSeq || was.Msgs == 0 {
		return 0, nil
	}
	if err := stream.Purge(ctx, jetstream.WithPurgeSequence(before)); err != nil {
		return 0, fmt.Errorf("purge stream %s: %w", queue, err)
	}
	now, err := stream.Info(ctx)
	if err != nil {
		return 0, lookUpError(queue, err)
	}
	// What came meanwhile is not counted as kept.
	return was.Msgs + (now.State.LastSeq - was.LastSeq) - now.State.Msgs, nil
}
