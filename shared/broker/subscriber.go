package broker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"
)

// SubscriberConfig of NewSubscriber.
type SubscriberConfig struct {
	// Group is the consumer group: replicas with one name share the messages of a topic. The durable's
	// name is Group-Generation, so a group reads one topic of a stream. Empty: a group of its own per
	// Subscribe call, which ends with it.
	Group string
	// Besides are further topics of the stream that the group's durable takes, in one row with the topic of
	// Subscribe. A durable that takes less gets them from then on; one that takes more keeps what it takes.
	Besides []string
	// MaxInFlight is how many messages of one subscription may be handed out or buffered and not yet acked.
	// Twice what the workers have in hand keeps a full batch waiting for each of them (batches of 98
	// instead of 55 in a trial); more only takes from other replicas. Default 100.
	MaxInFlight  int
	AckWait      time.Duration // Default 5 s; extended by heartbeat at a third
	NackDelay    time.Duration // before a nacked message comes again. Default 100 ms; 0 at shutdown
	CloseTimeout time.Duration // how long Close waits for handlers. Default 8 s
	AutoCreate   bool          // create the topic's stream when missing (tests and tools)
	// OnDurable is called after the durable was created or found anew (a new name, or a
	// rebuilt stream), before the first pull; the consumer registers itself with the store there. May be nil.
	OnDurable func(ctx context.Context, durable string)
}

func (sc SubscriberConfig) withDefaults() SubscriberConfig {
	if sc.MaxInFlight == 0 {
		sc.MaxInFlight = 100
	}
	if sc.AckWait == 0 {
		sc.AckWait = 5 * time.Second
	}
	if sc.NackDelay == 0 {
		sc.NackDelay = 100 * time.Millisecond
	}
	if sc.CloseTimeout == 0 {
		sc.CloseTimeout = 8 * time.Second
	}
	return sc
}

func (sc SubscriberConfig) validate() error {
	var errs []error
	if strings.ContainsAny(sc.Group, " \t\r\n.*>/\\") || len(sc.Group) > 200 {
		errs = append(errs, fmt.Errorf("group %q: blanks and . * > / \\ are not allowed, nor more than 200 bytes", sc.Group))
	}
	for _, topic := range sc.Besides {
		if !validTopic(topic) {
			errs = append(errs, fmt.Errorf("topic %q: no topic", topic))
		}
	}
	if sc.MaxInFlight < 1 || sc.MaxInFlight > 10_000 {
		errs = append(errs, fmt.Errorf("max in flight %d is not 1 to 10,000", sc.MaxInFlight))
	}
	if sc.AckWait < 100*time.Millisecond {
		errs = append(errs, fmt.Errorf("ack wait %s is under 100 ms", sc.AckWait))
	}
	if sc.NackDelay < 0 || sc.CloseTimeout < 0 {
		errs = append(errs, errors.New("nack delay and close timeout must not be negative"))
	}
	return errors.Join(errs...)
}

// Subscriber implements message.Subscriber over one durable pull consumer per group.
type Subscriber struct {
	conn   *Conn
	config SubscriberConfig
	gate   *gate

	stop     context.CancelFunc // ends every subscription
	stopping context.Context

	finish    context.CancelFunc // ends every subscription's pulling
	finishing context.Context

	mu     sync.Mutex // guards closed and all, and Add of the two groups against Wait
	closed bool
	all    map[*subscription]struct{} // that have not ended
	// running counts subscriptions, pulling those that may still pull.
	running, pulling sync.WaitGroup
}

// NewSubscriber returns a subscriber on a borrowed connection.
func NewSubscriber(c *Conn, sc SubscriberConfig) (*Subscriber, error) {
	sc = sc.withDefaults()
	if err := sc.validate(); err != nil {
		return nil, fmt.Errorf("new subscriber: %w", err)
	}
	s := &Subscriber{conn: c, config: sc, gate: newGate(), all: map[*subscription]struct{}{}}
	s.stopping, s.stop = context.WithCancel(context.Background())
	s.finishing, s.finish = context.WithCancel(s.stopping)
	return s, nil
}

// Subscribe hands out messages until ctx ends or Close; then the channel is closed after the messages
// handed out are settled. It returns at once: the stream may come into being later.
//
// The channel is buffered with what waits in the stream up to MaxInFlight, so that a handler can take a
// batch by receiving until the channel is empty. Message contexts carry ctx's values but are NOT cancelled
// by ctx or Close until CloseTimeout has passed.
func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if topic == "" || strings.ContainsAny(topic, " \t\r\n") || strings.ContainsAny(rootOf(topic), "*>") || rootOf(topic) == "" {
		return nil, fmt.Errorf("subscribe to %q: no topic", topic)
	}
	for _, other := range s.config.Besides {
		if streamOf(other) != streamOf(topic) {
			return nil, fmt.Errorf("subscribe to %s: topic %s is of another stream", topic, other)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, fmt.Errorf("subscribe to %s: %w", topic, ErrClosed)
	}
	b := newSubscription(ctx, s, topic)
	s.pulling.Add(1)
	s.all[b] = struct{}{}
	s.running.Go(func() {
		b.run()
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.all, b)
	})
	return b.out, nil
}

// Pause makes every subscription stop pulling and nack what is buffered; it returns at once.
// Messages handed out stay with their handlers.
func (s *Subscriber) Pause() { s.gate.set(true) }

// Resume goes on pulling after Pause.
func (s *Subscriber) Resume() { s.gate.set(false) }

// Finish ends pulling for good and returns when nothing more will arrive. What is buffered by then may
// still be received until Close, which must follow.
func (s *Subscriber) Finish() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.finish()
	s.pulling.Wait()
}

// Close stops pulling, nacks what is buffered, waits for the messages handed out to be settled up to
// CloseTimeout, nacks the rest and closes the channels.
func (s *Subscriber) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.stop()
	s.running.Wait()
	return nil
}

// AckFloor returns the stream sequence up to which every message was acknowledged by the group's
// durable (0 when it does not exist).
func (s *Subscriber) AckFloor(ctx context.Context, topic string) (uint64, error) {
	st, err := s.conn.Stream(ctx, streamOf(topic))
	if errors.Is(err, ErrNoStream) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("ack floor of %s: %w", s.config.Group, err)
	}
	c, err := s.conn.JS.Consumer(ctx, streamOf(topic), durableName(s.config.Group, st.Generation))
	if errors.Is(err, jetstream.ErrConsumerNotFound) || errors.Is(err, jetstream.ErrStreamNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("ack floor of %s: %w", s.config.Group, err)
	}
	return c.CachedInfo().AckFloor.Stream, nil
}

// groupName is the group of a new subscription.
func (sc SubscriberConfig) groupName() string {
	if sc.Group == "" {
		return "own-" + uuid.NewString()
	}
	return sc.Group
}

// gate tells subscriptions whether they may pull.
type gate struct {
	mu      sync.Mutex // guards all below
	paused  bool
	changed chan struct{} // closed and replaced when paused changes
}

func newGate() *gate { return &gate{changed: make(chan struct{})} }

func (g *gate) set(paused bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.paused != paused {
		g.paused = paused
		close(g.changed)
		g.changed = make(chan struct{})
	}
}

// state returns whether pulling is paused, and a channel that is closed when that changes.
func (g *gate) state() (paused bool, changed <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.paused, g.changed
}
