// Package consumer turns messages into effects, each once and in order: it
// pulls batches from a Watermill subscriber, decodes events, keeps the lanes,
// parks what fails and keeps dead letters, in one transaction per group.
package consumer

import (
	"context"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/events"
	"github.com/prometheus/client_golang/prometheus"
)

// Event is a decoded event with the bytes it came in.
type Event struct {
	events.Event
	Raw      []byte
	Sequence uint64 // in the stream; 0 when unknown
}

// Group is what one transaction is about.
type Group struct {
	// Due events take effect now, those of one order in version order without gaps.
	Due []Event
	// Duplicates took effect earlier (their version is at or below the lane); an effect that finishes
	// work after the commit makes sure that it is finished. Empty for unordered consumers.
	Duplicates []Event
}

// Effect is what a service does with events.
type Effect interface {
	// Prepare does the slow part for events that will probably be due, before the
	// transaction and without the database. An error fails the whole group (it is then done again one by one).
	Prepare(ctx context.Context, group Group) (Work, error)
	// Probe reports whether what the effect depends on (other than the database) is usable; called while the consumer is paused.
	Probe(ctx context.Context) error
}

// Work is one prepared group. After Prepare exactly one of Done and Discard is called, except after an unknown commit outcome (neither).
type Work interface {
	// Apply makes the effects within the transaction. Its group's Due is what is really due: a subset of what was prepared.
	Apply(ctx context.Context, tx *database.Tx, group Group) error
	// Done runs after the commit and before the acknowledgement.
	Done(ctx context.Context) error
	// Discard runs when the transaction certainly did not happen.
	Discard(ctx context.Context)
}

// Config of a consumer; zero values mean the defaults.
type Config struct {
	Name        string        // consumer name, e.g. "mailer"
	Topic       string        // default events.TopicOrders
	Ordered     bool          // keep lanes; otherwise the effect deduplicates by event id
	Batch       int           // most events in a group. Default 100
	Workers     int           // groups at a time. Default 2
	MaxAttempts int           // then a parked event becomes a dead letter. Default 10
	Backoff     time.Duration // before the second attempt; doubles with jitter. Default 1 s
	MaxBackoff  time.Duration // default 1 h
	Drain       time.Duration // deadline for work under way at stop. Default 8 s
}

// Deps of a consumer.
type Deps struct {
	DB         *database.DB
	Subscriber Subscriber
	Effect     Effect
	Log        *slog.Logger
	Registry   prometheus.Registerer
}

// Subscriber is a Watermill subscriber that can pause and knows its ack floor (broker.Subscriber).
type Subscriber interface {
	message.Subscriber
	Pause()
	Resume()
	AckFloor(ctx context.Context, topic string) (uint64, error)
}

// Consumer is the monitor of one service's subscription.
type Consumer struct{}

// New checks its arguments; it does no I/O.
func New(c Config, d Deps) (*Consumer, error) { panic("skeleton") }

// Run consumes until ctx ends, then drains: no new messages, work under way finishes to the deadline.
func (c *Consumer) Run(ctx context.Context) error { panic("skeleton") }

// Apply adapts a function that only works within the transaction.
func Apply(do func(ctx context.Context, tx *database.Tx, due []Event) error) Effect {
	panic("skeleton")
}
