package broker

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// SubscriberConfig of NewSubscriber.
type SubscriberConfig struct {
	Group        string        // consumer group: replicas with one name share the messages. Durable name is Group-Generation. Empty: a group of its own per Subscribe call
	MaxInFlight  int           // messages handed out or buffered and not yet acked. Default 100
	AckWait      time.Duration // Default 5 s; extended by heartbeat at a third
	NackDelay    time.Duration // before a nacked message comes again. Default 100 ms; 0 at shutdown
	CloseTimeout time.Duration // how long Close waits for handlers. Default 8 s
	AutoCreate   bool          // create the topic's stream when missing (tests and tools)
	// OnDurable is called after the durable was created or found anew (a new name, or a
	// rebuilt stream), before the first pull; the consumer registers itself with the store there. May be nil.
	OnDurable func(ctx context.Context, durable string)
}

// Subscriber implements message.Subscriber over one durable pull consumer per group.
type Subscriber struct{}

// NewSubscriber returns a subscriber on a borrowed connection.
func NewSubscriber(c *Conn, sc SubscriberConfig) (*Subscriber, error) { panic("skeleton") }

// Subscribe hands out messages until ctx ends or Close. The channel is buffered
// with what waits in the stream up to MaxInFlight, so that a handler can take a
// batch by receiving until the channel is empty. Message contexts are NOT cancelled by ctx or Close
// until CloseTimeout has passed.
func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	panic("skeleton")
}

// Pause stops pulling and nacks what is buffered; Resume goes on.
func (s *Subscriber) Pause() { panic("skeleton") }

// Resume goes on pulling after Pause.
func (s *Subscriber) Resume() { panic("skeleton") }

// Close stops pulling, nacks what is buffered, waits for the messages handed out to be settled up to
// CloseTimeout, nacks the rest and closes the channels.
func (s *Subscriber) Close() error { panic("skeleton") }

// Info is what the broker knows of a received message.
type Info struct {
	Subject    string
	Sequence   uint64 // in the stream
	Deliveries uint64 // 1 for the first
	StoredAt   time.Time
	Headers    map[string][]string // as they came
	// Malformed is why the message cannot be an event (a header with two values), else "".
	Malformed string
}

// InfoOf returns the broker's knowledge of a message that Subscribe handed out.
func InfoOf(m *message.Message) (Info, bool) { panic("skeleton") }

// AckFloor returns the stream sequence up to which every message was acknowledged by the group's
// durable (0 when it does not exist).
func (s *Subscriber) AckFloor(ctx context.Context, topic string) (uint64, error) { panic("skeleton") }
