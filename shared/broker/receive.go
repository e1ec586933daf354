package broker

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	toolAckWait    = 5 * time.Second
	toolAckPending = 1000
	connectionPoll = 100 * time.Millisecond
)

// EnsureConsumer finds the durable of a group at a stream, or makes one that begins with the stream's first
// message and takes topics (empty: all). It is for tools: a service makes its own when it subscribes.
func (c *Conn) EnsureConsumer(ctx context.Context, queue, group string, topics []string) (ConsumerInfo, error) {
	st, err := c.Stream(ctx, queue)
	if err != nil {
		return ConsumerInfo{}, err
	}
	name := durableName(group, st.Generation)
	found, err := c.JS.Consumer(ctx, queue, name)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		// CreateConsumer fails when another has made an unlike one meanwhile; then nothing is changed.
		found, err = c.JS.CreateConsumer(ctx, queue, jetstream.ConsumerConfig{
			Durable: name, FilterSubjects: topics, DeliverPolicy: jetstream.DeliverAllPolicy,
			AckPolicy: jetstream.AckExplicitPolicy, AckWait: toolAckWait, MaxDeliver: -1, MaxAckPending: toolAckPending,
			Metadata: map[string]string{
				metaGroup: group, metaGeneration: strconv.FormatInt(st.Generation, 10), metaTool: "1",
			},
		})
	}
	if err != nil {
		return ConsumerInfo{}, fmt.Errorf("create durable %s: %w", name, err)
	}
	return consumerOf(found.CachedInfo()), nil
}

// Receiver takes the messages of one durable one at a time. It is for tools; services subscribe. It is not safe
// for concurrent use.
type Receiver struct {
	conn *Conn
	at   durable
	s    *session
}

// NewReceiver returns a receiver of a durable that exists. Close it.
func (c *Conn) NewReceiver(i ConsumerInfo) *Receiver {
	return &Receiver{conn: c, at: durable{stream: i.Queue, name: i.Durable}}
}

// Received is a message that somebody must settle; else it comes again after the ack deadline.
type Received struct {
	Stored
	Deliveries uint64 // 1 for the first
	msg        *nats.Msg
}

// Next waits for a message until ctx ends. It outlives what happens at the server, but not a lost connection, which is
// ErrDisconnected: call it again when it is back. A durable that is gone is ErrNoConsumer.
func (r *Receiver) Next(ctx context.Context) (Received, error) {
	for {
		m, err := r.next(ctx)
		if err == nil {
			return receivedOf(m)
		}
		if ctx.Err() != nil {
			return Received{}, context.Cause(ctx)
		}
		// The session is of no use any more. Is the durable?
		r.Close()
		if !r.conn.NATS.IsConnected() {
			return Received{}, ErrDisconnected
		}
		if _, err := r.conn.JS.Consumer(ctx, r.at.stream, r.at.name); errors.Is(err, jetstream.ErrConsumerNotFound) ||
			errors.Is(err, jetstream.ErrStreamNotFound) {
			return Received{}, fmt.Errorf("%w: %s", ErrNoConsumer, r.at.name)
		}
		select {
		case <-ctx.Done():
		case <-time.After(reconnectWait):
		}
	}
}

// next waits for a message of the present session.
func (r *Receiver) next(ctx context.Context) (*nats.Msg, error) {
	if r.s == nil {
		s, err := newSession(r.conn, r.at, 1)
		if err != nil {
			return nil, err
		}
		r.s = s
	}
	look := time.NewTicker(connectionPoll)
	defer look.Stop()
	asked := time.Now()
	for {
		if r.s.due == 0 {
			if err := r.s.pull(1); err != nil {
				return nil, err
			}
			asked = time.Now()
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-look.C:
			if !r.conn.NATS.IsConnected() {
				return nil, ErrDisconnected
			}
			if time.Since(asked) > pullExpiry+pullGrace {
				return nil, errNoAnswer
			}
		case m := <-r.s.msgs:
			if isMessage, err := r.s.receive(m); err != nil || isMessage {
				return m, err
			}
		}
	}
}

// Close gives back what arrived and was not handed out.
func (r *Receiver) Close() {
	if r.s == nil {
		return
	}
	r.s.end(func(m *nats.Msg) { _ = m.Nak() }) // an error means that it comes after the ack deadline
	r.s = nil
}

func receivedOf(m *nats.Msg) (Received, error) {
	meta, err := m.Metadata()
	if err != nil {
		return Received{}, fmt.Errorf("read the broker's word on a message: %w", err)
	}
	return Received{
		Stored: Stored{
			Subject: m.Subject, Sequence: meta.Sequence.Stream, StoredAt: meta.Timestamp.UTC(), Headers: m.Header, Data: m.Data,
		},
		Deliveries: meta.NumDelivered, msg: m,
	}, nil
}

// Ack acknowledges the message and waits until the broker has it.
func (m Received) Ack(ctx context.Context) error {
	if err := m.msg.AckSync(nats.Context(ctx)); err != nil {
		return fmt.Errorf("acknowledge message %d: %w", m.Sequence, err)
	}
	return nil
}

// Nack gives the message back: it comes again at once.
func (m Received) Nack() error {
	if err := m.msg.Nak(); err != nil {
		return fmt.Errorf("give back message %d: %w", m.Sequence, err)
	}
	return nil
}
