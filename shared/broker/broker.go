// Package broker is the Watermill publisher and subscriber over NATS JetStream,
// written for durable streams and competing consumers (see Subscriber).
package broker

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Errors of publishing. What is none of these has an unknown outcome: the
// message may or may not be in the stream.
var (
	// ErrDuplicate: a batch held a message whose publish id the stream has seen; nothing of the batch was stored.
	ErrDuplicate = errors.New("duplicate publish id in batch")
	// ErrFull: the stream is at its limit; nothing was stored.
	ErrFull = errors.New("stream full")
	// ErrRefused: the broker will never take this message (too large, no such subject, bad header).
	ErrRefused = errors.New("message refused")
)

// Config of Connect.
type Config struct {
	URL    string // nats://user:password@host:port, several separated by commas
	Name   string // connection name, shown by the server
	Token  string
	Server nats.InProcessConnProvider // an embedded server; then URL is ignored
}

// Conn is a connection that reconnects for ever.
type Conn struct {
	NATS *nats.Conn
	JS   jetstream.JetStream
	log  *slog.Logger
}

// Connect returns at once, also when no server answers yet: the connection is
// made in the background and kept.
func Connect(c Config, log *slog.Logger) (*Conn, error) { panic("skeleton") }

// Ready reports whether the server answers.
func (c *Conn) Ready(ctx context.Context) error { panic("skeleton") }

// Close closes the connection. Close subscribers and publishers first.
func (c *Conn) Close() { panic("skeleton") }

// StreamConfig is what a stream needs (DESIGN 5.4): limits retention, DiscardNew, no MaxAge.
type StreamConfig struct {
	Name     string // its subjects are Name.>
	MaxBytes int64  // default 1 GiB
	Replicas int    // default 1
	FirstSeq uint64 // of a new stream
	// Generation rises when a stream lost its tail; it is kept in the stream's metadata and
	// is part of the durables' names.
	Generation int64
}

// StreamState is what the relay compares with its own memory.
type StreamState struct {
	Created    time.Time
	FirstSeq   uint64
	LastSeq    uint64
	Messages   uint64
	Bytes      uint64
	Generation int64
}

// ErrNoStream: the stream does not exist.
var ErrNoStream = errors.New("no such stream")

// EnsureStream creates the stream or brings its configuration up to date, and returns its state.
func (c *Conn) EnsureStream(ctx context.Context, s StreamConfig) (StreamState, error) {
	panic("skeleton")
}

// Stream returns the state of a stream, or ErrNoStream.
func (c *Conn) Stream(ctx context.Context, name string) (StreamState, error) { panic("skeleton") }

// Receipt is the broker's confirmation of one publish.
type Receipt struct {
	Sequence  uint64
	Duplicate bool // the stream had this publish id already; Sequence is the old one's
}

// Publisher implements message.Publisher. The topic is the subject; its first token names the stream.
// The publish id is the message's metadata MetaPublishID, else its UUID.
type Publisher struct{}

// Metadata keys that the adapter reads and writes.
const (
	MetaPublishID = "Nats-Msg-Id"
)

// PublisherConfig of NewPublisher. The zero value works.
type PublisherConfig struct {
	Timeout    time.Duration // of one confirmed publish. Default 2 s
	AutoCreate bool          // create the topic's stream when missing (tests and tools)
}

// NewPublisher returns a publisher on a borrowed connection: Close does not close it.
func NewPublisher(c *Conn, pc PublisherConfig) *Publisher { panic("skeleton") }

// Publish publishes the messages in order, each confirmed by the broker before the next. It stops at the first error.
func (p *Publisher) Publish(topic string, messages ...*message.Message) error { panic("skeleton") }

// PublishOne publishes one message and waits for the broker's confirmation.
func (p *Publisher) PublishOne(ctx context.Context, topic string, m *message.Message) (Receipt, error) {
	panic("skeleton")
}

// PublishAtomic publishes 2 to 1,000 messages as one atomic batch: all are in the stream, with
// consecutive sequences in the given order, or none. It returns the sequence of the last one.
func (p *Publisher) PublishAtomic(ctx context.Context, topic string, messages []*message.Message) (last uint64, err error) {
	panic("skeleton")
}

// Close waits for publishes under way.
func (p *Publisher) Close() error { panic("skeleton") }
