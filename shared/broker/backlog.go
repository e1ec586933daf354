package broker

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"
)

// Backlog is what a group has not handled yet.
type Backlog struct {
	Waiting  uint64 // messages that nobody was given, and those given out and not acknowledged
	AckFloor uint64 // stream sequence up to which everything is acknowledged
	LastSeq  uint64 // of the stream
}

// Backlog asks for the backlog of the group that reads topic. Before the stream or the group's durable exists there
// is none. It needs no right to read messages.
func (c *Conn) Backlog(ctx context.Context, topic, group string) (Backlog, error) {
	st, err := c.Stream(ctx, streamOf(topic))
	if errors.Is(err, ErrNoStream) {
		return Backlog{}, nil
	}
	if err != nil {
		return Backlog{}, fmt.Errorf("backlog of %s: %w", group, err)
	}
	durable, err := c.JS.Consumer(ctx, streamOf(topic), durableName(group, st.Generation))
	if errors.Is(err, jetstream.ErrConsumerNotFound) || errors.Is(err, jetstream.ErrStreamNotFound) {
		return Backlog{LastSeq: st.LastSeq}, nil
	}
	if err != nil {
		return Backlog{}, fmt.Errorf("backlog of %s: %w", group, err)
	}
	info := durable.CachedInfo()
	return Backlog{
		Waiting: info.NumPending + uint64(max(info.NumAckPending, 0)), AckFloor: info.AckFloor.Stream, LastSeq: st.LastSeq,
	}, nil
}
