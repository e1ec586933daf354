package auditsvc

import (
	"errors"
	"fmt"
	"time"

	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/consumer"
	"github.com/pillarbox/pillarbox/shared/outbox"
)

// Config of the service. A field that is zero has its default, so that the zero value works.
type Config struct {
	Batch      int           `name:"batch" env:"PILLARBOX_AUDIT_BATCH" default:"100" help:"Most events recorded in one transaction (1 to 1000)."`
	Workers    int           `name:"workers" env:"PILLARBOX_AUDIT_WORKERS" default:"2" help:"Transactions at a time (1 to 16)."`
	Attempts   int           `name:"attempts" env:"PILLARBOX_AUDIT_ATTEMPTS" default:"10" help:"Attempts at an event before it becomes a dead letter (1 to 1000)."`
	Backoff    time.Duration `name:"backoff" env:"PILLARBOX_AUDIT_BACKOFF" default:"1s" help:"Time before an event's second attempt; it doubles from there (1ms to 1h)."`
	MaxBackoff time.Duration `name:"max-backoff" env:"PILLARBOX_AUDIT_MAX_BACKOFF" default:"1h" help:"Longest time between two attempts (1ms to 24h)."`
	Drain      time.Duration `name:"drain" env:"PILLARBOX_AUDIT_DRAIN" default:"8s" help:"Time that work under way has to finish at a stop (100ms to 5m)."`
}

// Default returns the defaults.
func Default() Config { return Config{}.withDefaults() }

func (c Config) withDefaults() Config {
	orElse(&c.Batch, 100)
	orElse(&c.Workers, 2)
	orElse(&c.Attempts, 10)
	orElse(&c.Backoff, time.Second)
	orElse(&c.MaxBackoff, time.Hour)
	orElse(&c.Drain, 8*time.Second)
	return c
}

func orElse[T comparable](field *T, standard T) {
	var zero T
	if *field == zero {
		*field = standard
	}
}

// Validate reports every setting that is out of range.
func (c Config) Validate() error {
	c = c.withDefaults()
	var problems []error
	check := func(ok bool, name, rule string) {
		if !ok {
			problems = append(problems, fmt.Errorf("PILLARBOX_AUDIT_%s must be %s", name, rule))
		}
	}
	check(c.Batch >= 1 && c.Batch <= 1000, "BATCH", "1 to 1000")
	check(c.Workers >= 1 && c.Workers <= 16, "WORKERS", "1 to 16")
	check(c.Attempts >= 1 && c.Attempts <= 1000, "ATTEMPTS", "1 to 1000")
	check(c.Backoff >= time.Millisecond && c.Backoff <= time.Hour, "BACKOFF", "1ms to 1h")
	check(c.MaxBackoff >= time.Millisecond && c.MaxBackoff <= 24*time.Hour, "MAX_BACKOFF", "1ms to 24h")
	check(c.MaxBackoff >= c.Backoff, "MAX_BACKOFF", "at least PILLARBOX_AUDIT_BACKOFF")
	check(c.Drain >= 100*time.Millisecond && c.Drain <= 5*time.Minute, "DRAIN", "100ms to 5m")
	return errors.Join(problems...)
}

func (c Config) subscriber(r *outbox.Registrar) broker.SubscriberConfig {
	return broker.SubscriberConfig{
		Group:        Name,
		MaxInFlight:  min(c.Batch*c.Workers, 10_000), // a full group for each worker
		CloseTimeout: c.Drain,
		OnDurable:    r.Announce,
	}
}

func (c Config) consumer() consumer.Config {
	return consumer.Config{
		Name:        Name,
		Ordered:     false, // an entry says by itself where it belongs
		Batch:       c.Batch,
		Workers:     c.Workers,
		MaxAttempts: c.Attempts,
		Backoff:     c.Backoff,
		MaxBackoff:  c.MaxBackoff,
		Drain:       c.Drain,
	}
}
