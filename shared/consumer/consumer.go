// Package consumer turns messages into effects, each once and those of one
// order in version order, with any number of replicas: it takes groups of
// messages from a Watermill subscriber, decodes the events, keeps the lanes,
// parks what fails and keeps dead letters.
//
// How a group goes: what cannot be read becomes a dead letter. The lanes and
// the stored events of the group's orders are read without locks, the effect
// prepares what will probably be due, and one transaction locks the lanes in
// sorted order, decides again and makes the effects. After the commit the
// effect finishes its work, then the messages are acknowledged. There is no
// middleware besides: dedup, retry and dead letters in one order, here.
//
// It promises that an event that was acknowledged took effect, or stands in
// the table parked, or among the dead letters; that an effect's transaction
// happens once per event and, for an ordered consumer, for version n + 1 of an
// order only after version n; and that neither a shutdown nor a dependency
// that is down uses up attempts. It does not promise that Prepare and Done run
// once: both may be repeated and must bear it.
//
// A crash leaves unacknowledged messages, which the broker hands out again and
// which the lanes then recognise, and rows in parked: each is an obligation,
// also one whose version the lane has passed (its effect's Done may not have
// run). The sweep of any replica takes them up within seconds.
package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/events"
	"github.com/pillarbox/pillarbox/shared/lease"
	"github.com/pillarbox/pillarbox/shared/logs"
	"github.com/prometheus/client_golang/prometheus"
)

// Config of a consumer; zero values mean the defaults.
type Config struct {
	Name           string        // consumer name, e.g. "mailer"
	Topic          string        // default events.TopicOrders
	From           From          // where it begins; its first start ever decides
	Ordered        bool          // keep lanes; otherwise the effect deduplicates by event id
	Delivery       Delivery      // default EffectivelyOnce; another one keeps no lanes
	Batch          int           // most events in a group. Default 100
	Workers        int           // groups at a time. Default 2; one in mode single
	Mode           Mode          // default ModeGroup
	Lease          time.Duration // mode single: how long a silent leader keeps its place. Default 5 s
	MaxAttempts    int           // then a parked event becomes a dead letter. Default 10
	Backoff        time.Duration // before the second attempt; doubles with jitter. Default 1 s
	MaxBackoff     time.Duration // default 1 h
	Timeout        time.Duration // of one group, Prepare to Done. Default 30 s
	Sweep          time.Duration // between looks at what is parked. Default 1 s
	ParkedPerOrder int           // most rows parked for one order; then it pauses. Default 10,000
	ParkedTotal    int           // most rows parked in all; then it pauses. Default 100,000
	Letters        int           // most dead letters that nobody has settled; then it pauses. Default 100,000
	Drain          time.Duration // deadline for work under way at stop. Default 8 s
	AfterDeath     AfterDeath    // of an ordered consumer's event: what its order does. Default hold
	OutageEvents   int           // so many transient failures in a row, none succeeding, are an outage. Default 10
	OutageOrders   int           // when they are of so many orders. Default 5
	OutageAfter    time.Duration // and lasted so long. Default 2 s
}

// Validate reports every setting that is out of range.
func (c Config) Validate() error {
	var errs []error
	check := func(ok bool, problem string) {
		if !ok {
			errs = append(errs, errors.New("consumer: "+problem))
		}
	}
	check(c.Name != "" && len(c.Name) <= 64, "name must have 1 to 64 bytes")
	check(c.Batch >= 0 && c.Batch <= maxBatch, fmt.Sprintf("batch must be 1 to %d events", maxBatch))
	check(c.Workers >= 0 && c.Workers <= 64, "workers must be 1 to 64")
	check(c.Mode == "" || c.Mode.Valid(), "mode must be group or single")
	check(c.Delivery.Valid(), "delivery must be effectively-once, at-least-once or at-most-once")
	check(c.MaxAttempts >= 0, "attempts must not be negative")
	check(c.ParkedPerOrder >= 0 && c.ParkedTotal >= 0 && c.Letters >= 0, "limits of parked rows and dead letters must not be negative")
	check(c.From.Valid(), "from must be start, now or an RFC 3339 time")
	// What is published again would take effect again.
	check(c.From == "" || c.Delivery != AtMostOnce, "from must be empty with at-most-once delivery")
	check(c.AfterDeath.Valid(), "after death must be hold or skip")
	check(c.OutageEvents >= 0 && c.OutageOrders >= 0 && c.OutageAfter >= 0, "numbers that make an outage must not be negative")
	check(c.Backoff >= 0 && c.MaxBackoff >= 0 && c.Timeout >= 0 && c.Sweep >= 0 && c.Drain >= 0, "durations must not be negative")
	return errors.Join(errs...)
}

// maxBatch keeps one statement's parameters far below what the engines take.
const maxBatch = 1000

func (c Config) withDefaults() Config {
	c.Topic = cmp.Or(c.Topic, events.TopicOrders)
	c.Delivery = cmp.Or(c.Delivery, EffectivelyOnce)
	c.Ordered = c.Ordered && c.Delivery == EffectivelyOnce
	c.Batch = cmp.Or(c.Batch, 100)
	c.Workers = cmp.Or(c.Workers, 2)
	c.MaxAttempts = cmp.Or(c.MaxAttempts, 10)
	c.Backoff = cmp.Or(c.Backoff, time.Second)
	c.MaxBackoff = cmp.Or(c.MaxBackoff, time.Hour)
	c.Timeout = cmp.Or(c.Timeout, 30*time.Second)
	c.Sweep = cmp.Or(c.Sweep, time.Second)
	c.ParkedPerOrder = cmp.Or(c.ParkedPerOrder, 10_000)
	c.ParkedTotal = cmp.Or(c.ParkedTotal, 100_000)
	c.Letters = cmp.Or(c.Letters, 100_000)
	c.Drain = cmp.Or(c.Drain, 8*time.Second)
	c.AfterDeath = cmp.Or(c.AfterDeath, Hold)
	c.OutageEvents = cmp.Or(c.OutageEvents, 10)
	c.OutageOrders = cmp.Or(c.OutageOrders, 5)
	c.OutageAfter = cmp.Or(c.OutageAfter, 2*time.Second)
	c.Mode = cmp.Or(c.Mode, ModeGroup)
	if c.Mode == ModeSingle {
		c.Workers = 1
	}
	return c
}

// Deps of a consumer.
type Deps struct {
	DB         *database.DB
	Subscriber Subscriber
	Effect     Effect
	Log        *slog.Logger
	Publisher  Publisher             // hands events on along their route; nil: an event that has one pauses the consumer
	Past       Past                  // required with From
	Registry   prometheus.Registerer // nil: the metrics are kept and not shown
	Hints      lease.Hints           // mode single: how replicas hear that the leader has left; nil: by looking
}

// Subscriber is a Watermill subscriber that can pause, ends in two steps and knows its ack floor
// (broker.Subscriber).
type Subscriber interface {
	message.Subscriber
	Pause()
	Resume()
	// Finish ends pulling and returns when nothing more arrives; what is buffered may be received until Close.
	Finish()
	AckFloor(ctx context.Context, topic string) (uint64, error)
}

// Consumer is the monitor of one service's subscription.
type Consumer struct {
	Config
	db     *database.DB
	sub    Subscriber
	effect Effect
	log    *slog.Logger

	publisher Publisher
	metrics   metrics
	pause     *pause
	streak    streak
	seat      *seat // nil in mode group
	// parkedRows is how many rows the last sweep saw plus what this replica added since.
	parkedRows atomic.Int64
	parked     atomic.Pointer[snapshot]
	orphans    orphans
	begun      atomic.Bool // the database answered and the subscription stands
	stopping   atomic.Bool // the drain has begun
	lastCall   atomic.Bool // and no new group may begin
	past       Past
	beginning  beginning
}

// New checks its arguments; it does no I/O.
func New(c Config, d Deps) (*Consumer, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if d.DB == nil || d.Subscriber == nil || d.Effect == nil || d.Log == nil {
		return nil, errors.New("consumer: database, subscriber, effect and log are required")
	}
	if c.From != "" && d.Past == nil {
		return nil, errors.New("consumer: from needs somebody to ask for the past")
	}
	c = c.withDefaults()
	m, err := newMetrics(d.Registry, c.Name)
	if err != nil {
		return nil, fmt.Errorf("register consumer metrics: %w", err)
	}
	k := &Consumer{
		Config: c, db: d.DB, sub: d.Subscriber, effect: d.Effect, publisher: d.Publisher, past: d.Past,
		log: d.Log.With(logs.Consumer, c.Name), metrics: m,
	}
	k.pause = newPause(k.sub, k.log, m)
	k.streak.events, k.streak.orders, k.streak.after = c.OutageEvents, c.OutageOrders, c.OutageAfter
	if c.Mode == ModeSingle {
		if k.seat, err = newSeat(c, d, k.pause); err != nil {
			return nil, fmt.Errorf("consumer: %w", err)
		}
	}
	k.parked.Store(&snapshot{})
	return k, nil
}
