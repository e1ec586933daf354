package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/events"
)

// Settings are what an operator may set of a consumer. A service embeds them with the prefix of its
// environment names; a field that is zero has its default, so that the zero value works.
type Settings struct {
	Batch    int      `name:"batch" env:"BATCH" default:"100" help:"Most events handled in one transaction (1 to 1000)."`
	Workers  int      `name:"workers" env:"WORKERS" default:"2" help:"Transactions at a time (1 to 16)."`
	Delivery Delivery `name:"delivery" env:"DELIVERY" default:"effectively-once" help:"What a crash does to an event: effectively-once (comes again and takes effect once, in order), at-least-once (may take effect again; nobody waits for order) or at-most-once (lost, also when it fails)."`
	Policy   `embed:""`
}

// Policy is the part of the settings that is the same whatever a service calls its workers.
type Policy struct {
	Mode        Mode          `name:"mode" env:"MODE" default:"group" help:"Which replicas consume: group (all, each takes what it can) or single (one at a time, one transaction after another; the others stand by)."`
	Lease       time.Duration `name:"lease" env:"LEASE" default:"5s" help:"Mode single: time after which another replica takes over from a silent one (1s to 1m)."`
	Attempts    int           `name:"attempts" env:"ATTEMPTS" default:"10" help:"Attempts at an event before it becomes a dead letter (1 to 1000)."`
	Backoff     time.Duration `name:"backoff" env:"BACKOFF" default:"1s" help:"Time before an event's second attempt; it doubles from there (1ms to 1h)."`
	MaxBackoff  time.Duration `name:"max-backoff" env:"MAX_BACKOFF" default:"1h" help:"Longest time between two attempts (1ms to 24h)."`
	AfterDeath  AfterDeath    `name:"after-death" env:"AFTER_DEATH" default:"hold" help:"What an order does after one of its events became a dead letter: hold (later events wait for a person or a redrive) or skip (they go on without it)."`
	EventsFrom  From          `name:"events-from" env:"EVENTS_FROM" placeholder:"WHERE" help:"Where this service begins, decided at its first start ever: start (all events that ever were), now, or an RFC 3339 time (events of that time included). Default: with what the stream still keeps."`
	KeepLetters time.Duration `name:"keep-letters" env:"KEEP_LETTERS" default:"2160h" help:"Time that dead letters are kept after their order went on without them; others are kept until a person settles them (24h to 87600h)."`
	KeepActions time.Duration `name:"keep-actions" env:"KEEP_ACTIONS" default:"8760h" help:"Time that operators' actions and redrives are kept (24h to 87600h)."`
	ReadyAge    time.Duration `name:"ready-age" env:"READY_AGE" default:"1h" help:"Time for which this process may see an event wait unhandled before it counts as not ready (1s to 8760h)."`
	Drain       time.Duration `name:"drain" env:"DRAIN" default:"8s" help:"Time that work under way has to finish at a stop (100ms to 5m)."`
}

// WithDefaults fills in what is zero.
func (s Settings) WithDefaults() Settings {
	s.Batch = cmp.Or(s.Batch, 100)
	s.Workers = cmp.Or(s.Workers, 2)
	s.Delivery = cmp.Or(s.Delivery, EffectivelyOnce)
	s.Policy = s.Policy.WithDefaults()
	return s
}

// WithDefaults fills in what is zero.
func (p Policy) WithDefaults() Policy {
	p.Mode = cmp.Or(p.Mode, ModeGroup)
	p.Lease = cmp.Or(p.Lease, 5*time.Second)
	p.Attempts = cmp.Or(p.Attempts, 10)
	p.Backoff = cmp.Or(p.Backoff, time.Second)
	p.MaxBackoff = cmp.Or(p.MaxBackoff, time.Hour)
	p.AfterDeath = cmp.Or(p.AfterDeath, Hold)
	p.KeepLetters = cmp.Or(p.KeepLetters, DefaultKeepLetters)
	p.KeepActions = cmp.Or(p.KeepActions, DefaultKeepActions)
	p.ReadyAge = cmp.Or(p.ReadyAge, time.Hour)
	p.Drain = cmp.Or(p.Drain, 8*time.Second)
	return p
}

// Validate reports every setting that is out of range by its environment name.
func (s Settings) Validate(prefix string) error {
	s = s.WithDefaults()
	var problems []error
	check := func(ok bool, name, rule string) {
		if !ok {
			problems = append(problems, fmt.Errorf("%s%s must be %s", prefix, name, rule))
		}
	}
	check(s.Batch >= 1 && s.Batch <= 1000, "BATCH", "1 to 1000")
	check(s.Workers >= 1 && s.Workers <= 16, "WORKERS", "1 to 16")
	s.Policy.Check(prefix, s.Delivery, check)
	return errors.Join(problems...)
}

// Check calls check with every setting, its defaults filled in, and the delivery that goes with it, by their
// environment names without the prefix.
func (p Policy) Check(prefix string, delivery Delivery, check func(ok bool, name, rule string)) {
	check(delivery.Valid(), "DELIVERY", "effectively-once, at-least-once or at-most-once")
	check(p.Mode.Valid(), "MODE", "group or single")
	check(p.Lease >= time.Second && p.Lease <= time.Minute, "LEASE", "1s to 1m")
	check(p.Attempts >= 1 && p.Attempts <= 1000, "ATTEMPTS", "1 to 1000")
	check(p.Backoff >= time.Millisecond && p.Backoff <= time.Hour, "BACKOFF", "1ms to 1h")
	check(p.MaxBackoff >= time.Millisecond && p.MaxBackoff <= 24*time.Hour, "MAX_BACKOFF", "1ms to 24h")
	check(p.MaxBackoff >= p.Backoff, "MAX_BACKOFF", "at least "+prefix+"BACKOFF")
	check(p.AfterDeath.Valid(), "AFTER_DEATH", "hold or skip")
	check(p.EventsFrom.Valid(), "EVENTS_FROM", "start, now or an RFC 3339 time such as 2026-01-31T00:00:00Z")
	check(p.EventsFrom == "" || delivery != AtMostOnce, "EVENTS_FROM", "empty with "+prefix+"DELIVERY=at-most-once: events of the past are published again")
	check(keepable(24*time.Hour, p.KeepLetters), "KEEP_LETTERS", "24h to 87600h")
	check(keepable(24*time.Hour, p.KeepActions), "KEEP_ACTIONS", "24h to 87600h")
	check(p.ReadyAge >= time.Second && p.ReadyAge <= 8760*time.Hour, "READY_AGE", "1s to 8760h")
	check(p.Drain >= 100*time.Millisecond && p.Drain <= 5*time.Minute, "DRAIN", "100ms to 5m")
}

// Consumer is the configuration of the consumer called name.
func (s Settings) Consumer(name string, ordered bool) Config {
	s = s.WithDefaults()
	return Config{
		Name: name, Ordered: ordered, From: s.EventsFrom, Batch: s.Batch, Workers: s.Workers,
		MaxAttempts: s.Attempts, Backoff: s.Backoff, MaxBackoff: s.MaxBackoff, Drain: s.Drain, AfterDeath: s.AfterDeath,
		Mode: s.Mode, Lease: s.Lease, Delivery: s.Delivery,
	}
}

// Keeping is how long a consumer with these settings keeps what, as far as all consumers are alike; horizon is the
// registrar's, conn the way to the stream.
func (s Settings) Keeping(handled time.Duration, horizon func() (time.Duration, bool), conn *broker.Conn) Keeping {
	s = s.WithDefaults()
	return Keeping{
		Handled: handled, Letters: s.KeepLetters, Actions: s.KeepActions, Horizon: horizon, FirstStored: FirstStored(conn),
	}
}

// FirstStored is how a consumer learns since when the stream holds messages.
func FirstStored(conn *broker.Conn) func(context.Context) (time.Time, error) {
	return func(ctx context.Context) (time.Time, error) {
		ctx, cancel := context.WithTimeout(ctx, probeTimeout)
		defer cancel()
		stream, err := conn.Stream(ctx, events.StreamOrders)
		return stream.FirstAt, err
	}
}

// Subscriber is the configuration of its subscriber: a full group for each worker, and besides all events those
// that are meant for it, as the next one on a route or because it asked for them again.
func (s Settings) Subscriber(name string) broker.SubscriberConfig {
	s = s.WithDefaults()
	return broker.SubscriberConfig{
		Group: name, Besides: []string{events.RouteTopic(name), events.ReplayTopic(name)},
		MaxInFlight: min(s.Batch*s.groups(), 10_000), CloseTimeout: s.Drain,
	}
}

// groups is how many there are at a time.
func (s Settings) groups() int {
	if s.Mode == ModeSingle {
		return 1
	}
	return s.Workers
}
