package broker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/synadia-io/orbit.go/jetstreamext"
)

// Metadata keys that the adapter reads; received messages do not have them.
const (
	// MetaPublishID is the identity of a publish: the stream stores one id once within its duplicate window.
	// Who publishes a received message onward gives it another one.
	MetaPublishID = "Nats-Msg-Id"
	// MetaUUID carries the message's UUID where it differs from the publish id.
	MetaUUID = "Pillarbox-Uuid"
)

const (
	maxBatch = 1000 // the server's limit of an atomic batch
	// The server's own headers start so. They steer it (a batch, an expected sequence, a
	// roll-up), so a received message that is published again must not bring them along.
	reservedPrefix = "Nats-"
)

// Receipt is the broker's confirmation of one publish.
type Receipt struct {
	Sequence  uint64
	Duplicate bool // the stream had this publish id already; Sequence is the old one's
}

// Publisher implements message.Publisher. The topic is the subject; its first token names the stream.
// The publish id is the message's metadata MetaPublishID, else its UUID. Other metadata that begins
// with "Nats-" is left out.
type Publisher struct {
	conn    *Conn
	timeout time.Duration
	auto    bool
	created sync.Map // topic → struct{}: its stream was seen

	mu     sync.Mutex // guards closed, and underway.Add against Wait
	closed bool
	// underway counts publishes that Close waits for.
	underway sync.WaitGroup
}

// PublisherConfig of NewPublisher. The zero value works.
type PublisherConfig struct {
	Timeout    time.Duration // of one confirmed publish; a batch has three times as long. Default 2 s
	AutoCreate bool          // create the topic's stream when missing (tests and tools)
}

// NewPublisher returns a publisher on a borrowed connection: Close does not close it.
func NewPublisher(c *Conn, pc PublisherConfig) *Publisher {
	if pc.Timeout <= 0 {
		pc.Timeout = 2 * time.Second
	}
	return &Publisher{conn: c, timeout: pc.Timeout, auto: pc.AutoCreate}
}

// Publish publishes the messages in order, each confirmed by the broker before the next. It stops at the first error.
func (p *Publisher) Publish(topic string, messages ...*message.Message) error {
	for _, m := range messages {
		if _, err := p.PublishOne(m.Context(), topic, m); err != nil {
			return err
		}
	}
	return nil
}

// PublishOne publishes one message and waits for the broker's confirmation.
func (p *Publisher) PublishOne(ctx context.Context, topic string, m *message.Message) (Receipt, error) {
	ctx, end, err := p.begin(ctx, topic, p.timeout)
	if err != nil {
		return Receipt{}, fmt.Errorf("publish to %s: %w", topic, err)
	}
	defer end()
	msg, err := encode(topic, m)
	if err != nil {
		return Receipt{}, fmt.Errorf("publish to %s: %w", topic, err)
	}
	ack, err := p.conn.JS.PublishMsg(ctx, msg)
	if err != nil {
		return Receipt{}, fmt.Errorf("publish to %s: %w", topic, p.failed(ctx, topic, err))
	}
	return Receipt{Sequence: ack.Sequence, Duplicate: ack.Duplicate}, nil
}

// PublishAtomic publishes 1 to 1,000 messages as one atomic batch: all are in the stream, with
// consecutive sequences in the given order, or none. It returns the sequence of the last one.
// Keep a batch below 4 MiB.
func (p *Publisher) PublishAtomic(ctx context.Context, topic string, messages []*message.Message) (last uint64, err error) {
	if len(messages) == 0 || len(messages) > maxBatch {
		return 0, fmt.Errorf("publish batch to %s: %d messages are not 1 to %d", topic, len(messages), maxBatch)
	}
	ctx, end, err := p.begin(ctx, topic, 3*p.timeout)
	if err != nil {
		return 0, fmt.Errorf("publish batch to %s: %w", topic, err)
	}
	defer end()
	// Fresh messages each time: PublishMsgBatch writes batch headers into what it is given.
	batch := make([]*nats.Msg, len(messages))
	for i, m := range messages {
		if batch[i], err = encode(topic, m); err != nil {
			return 0, fmt.Errorf("publish batch to %s: %w", topic, err)
		}
		// Found before the first is sent: the server keeps the start of a batch that never ends for 10 s.
		if limit := p.conn.NATS.MaxPayload(); int64(batch[i].Size()) > limit {
			return 0, fmt.Errorf("publish batch to %s: %w: %d bytes are more than the broker's %d", topic, ErrRefused, batch[i].Size(), limit)
		}
	}
	// No round trip for the first message: the answer to the commit reports what is wrong with any of them.
	ack, err := jetstreamext.PublishMsgBatch(ctx, p.conn.JS, batch, jetstreamext.BatchFlowControl{AckTimeout: p.timeout})
	if err != nil {
		return 0, fmt.Errorf("publish batch to %s: %w", topic, p.failed(ctx, topic, err))
	}
	return ack.Sequence, nil
}

// Close waits for publishes under way. The connection stays open.
func (p *Publisher) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.underway.Wait()
	return nil
}

// begin opens one publish; end must be called when it is over.
func (p *Publisher) begin(ctx context.Context, topic string, timeout time.Duration) (_ context.Context, end func(), err error) {
	if !validTopic(topic) {
		return nil, nil, fmt.Errorf("%w: topic %q", ErrRefused, topic)
	}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, nil, ErrClosed
	}
	p.underway.Add(1)
	p.mu.Unlock()
	ctx, unbind := p.conn.link.bind(ctx)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	end = func() { cancel(); unbind(); p.underway.Done() }
	// Without a connection the client would buffer the message and send it some time after the
	// caller gave it up.
	if !p.conn.NATS.IsConnected() {
		err = ErrDisconnected
	} else if p.auto {
		err = p.ensure(ctx, topic)
	}
	if err != nil {
		end()
		return nil, nil, err
	}
	return ctx, end, nil
}

// failed names the error; a stream that is gone has to be created again.
func (p *Publisher) failed(ctx context.Context, topic string, err error) error {
	p.created.Delete(topic)
	if errors.Is(context.Cause(ctx), errAnswerLost) {
		return errAnswerLost
	}
	return publishError(err)
}

// ensure creates the topic's stream, and remembers that it did.
func (p *Publisher) ensure(ctx context.Context, topic string) error {
	if _, seen := p.created.Load(topic); seen {
		return nil
	}
	if err := p.conn.ensureTopic(ctx, topic); err != nil {
		return err
	}
	p.created.Store(topic, struct{}{})
	return nil
}

// encode makes the broker's message from ours.
func encode(topic string, m *message.Message) (*nats.Msg, error) {
	msg := nats.NewMsg(topic)
	msg.Data = m.Payload
	for k, v := range m.Metadata {
		if strings.HasPrefix(k, reservedPrefix) || k == MetaUUID {
			continue
		}
		if !validHeader(k, v) {
			return nil, fmt.Errorf("%w: header %q", ErrRefused, k)
		}
		msg.Header[k] = []string{v}
	}
	id := m.Metadata.Get(MetaPublishID)
	if id == "" {
		id = m.UUID
	}
	if !validHeader(MetaPublishID, id) || !validHeader(MetaUUID, m.UUID) {
		return nil, fmt.Errorf("%w: publish id %q", ErrRefused, id)
	}
	if id != "" {
		msg.Header[jetstream.MsgIDHeader] = []string{id}
	}
	if m.UUID != "" && m.UUID != id {
		msg.Header[MetaUUID] = []string{m.UUID}
	}
	return msg, nil
}

// validTopic reports whether a message can be published to topic.
func validTopic(topic string) bool {
	return topic != "" && !strings.ContainsAny(topic, " \t\r\n*>") && !strings.HasPrefix(topic, ".") &&
		!strings.HasSuffix(topic, ".") && !strings.Contains(topic, "..")
}

// validHeader reports whether a header arrives as it was sent: the client writes names
// unchecked, and values with line ends and outer blanks changed.
func validHeader(name, value string) bool {
	if name == "" || strings.TrimSpace(value) != value || strings.ContainsAny(value, "\r\n\x00") {
		return false
	}
	return !strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == ':' || r >= 0x7f })
}
