package mailersvc

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/mail"
	"strconv"
	"time"

	"github.com/pillarbox/pillarbox/services/mailer/internal/delivery"
	"github.com/pillarbox/pillarbox/services/mailer/internal/ledger"
	"github.com/pillarbox/pillarbox/services/mailer/internal/letter"
	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/consumer"
	"github.com/pillarbox/pillarbox/shared/dispatch"
	"github.com/pillarbox/pillarbox/shared/events"
	"github.com/pillarbox/pillarbox/shared/outbox"
	"github.com/pillarbox/pillarbox/shared/pace"
)

// Config of the service. A field that is zero has its default, so that the zero value works.
type Config struct {
	Sending `embed:""`

	Pickup       string              `name:"pickup" env:"PILLARBOX_MAILER_PICKUP" placeholder:"FOLDER" help:"Folder in which mails appear as .eml files (default ./pickup; in the suite, pickup in its data folder)."`
	From         string              `name:"from" env:"PILLARBOX_MAILER_FROM" default:"Pillarbox <orders@pillarbox.invalid>" help:"Sender of the mails, as Name <address>."`
	Domain       string              `name:"domain" env:"PILLARBOX_MAILER_DOMAIN" default:"pillarbox.invalid" help:"Domain in the mails' Message-IDs, and the mailer's name to a mail server."`
	FileMode     FileMode            `name:"file-mode" env:"PILLARBOX_MAILER_FILE_MODE" default:"0640" help:"Mode of the .eml files, octal, whatever the umask (0600 to 0666)."`
	Batch        int                 `name:"batch" env:"PILLARBOX_MAILER_BATCH" default:"100" help:"Most mails made durable in one transaction (1 to 1000)."`
	Dispatch     dispatch.Mode       `name:"dispatch" env:"PILLARBOX_MAILER_DISPATCH" default:"competing" help:"How the mails of a transaction are spread over the workers: competing (first free takes the next), single (one after another), round-robin (fixed turn), by-key (all of one order to one worker)."`
	Workers      int                 `name:"workers" env:"PILLARBOX_MAILER_WORKERS" default:"10" help:"Workers that render and write mails, and those that hand them to a mail server, each one at a time; single has one (1 to 256)."`
	Transactions int                 `name:"transactions" env:"PILLARBOX_MAILER_TRANSACTIONS" default:"2" help:"Transactions at a time (1 to 16)."`
	Mode         consumer.Mode       `name:"mode" env:"PILLARBOX_MAILER_MODE" default:"group" help:"Which replicas consume: group (all, each takes what it can) or single (one at a time, one transaction after another; the others stand by)."`
	Lease        time.Duration       `name:"lease" env:"PILLARBOX_MAILER_LEASE" default:"5s" help:"Mode single: time after which another replica takes over from a silent one (1s to 1m)."`
	Delivery     consumer.Delivery   `name:"delivery" env:"PILLARBOX_MAILER_DELIVERY" default:"effectively-once" help:"What a crash does to an event: effectively-once (comes again and takes effect once, in order), at-least-once (comes again; nobody waits for order) or at-most-once (lost, also when it fails)."`
	Rate         float64             `name:"rate" env:"PILLARBOX_MAILER_RATE" default:"0" help:"Mails per second that all replicas together hand to the transport (0.001 to 1000000; 0: unlimited)."`
	Burst        int                 `name:"burst" env:"PILLARBOX_MAILER_BURST" default:"0" help:"Mails that may go at once after a quiet time (at least 2 and a fifth of a second's worth; 0: two seconds' worth)."`
	Attempts     int                 `name:"attempts" env:"PILLARBOX_MAILER_ATTEMPTS" default:"10" help:"Attempts at an event before it becomes a dead letter (1 to 1000)."`
	Backoff      time.Duration       `name:"backoff" env:"PILLARBOX_MAILER_BACKOFF" default:"1s" help:"Time before an event's second attempt; it doubles from there (1ms to 1h)."`
	MaxBackoff   time.Duration       `name:"max-backoff" env:"PILLARBOX_MAILER_MAX_BACKOFF" default:"1h" help:"Longest time between two attempts (1ms to 24h)."`
	AfterDeath   consumer.AfterDeath `name:"after-death" env:"PILLARBOX_MAILER_AFTER_DEATH" default:"hold" help:"What an order does after one of its events became a dead letter: hold (later events wait for a person or a redrive) or skip (they go on without it)."`
	Sweep        time.Duration       `name:"sweep" env:"PILLARBOX_MAILER_SWEEP" default:"5s" help:"Time after which mails that a crash left unpublished are published by another replica, and between two looks for them (100ms to 10m)."`
	ReadyAge     time.Duration       `name:"ready-age" env:"PILLARBOX_MAILER_READY_AGE" default:"1h" help:"Time for which this process may see an event wait unhandled before it counts as not ready (1s to 8760h)."`
	Keep         time.Duration       `name:"keep" env:"PILLARBOX_MAILER_KEEP" default:"720h" help:"Time that deliveries which are over, and orders at rest, are remembered; at least PILLARBOX_STORE_HORIZON and 2h (3h to 87600h)."`
	KeepLetters  time.Duration       `name:"keep-letters" env:"PILLARBOX_MAILER_KEEP_LETTERS" default:"2160h" help:"Time that dead letters are kept after their order went on without them; others are kept until a person settles them (24h to 87600h)."`
	KeepActions  time.Duration       `name:"keep-actions" env:"PILLARBOX_MAILER_KEEP_ACTIONS" default:"8760h" help:"Time that operators' actions and redrives are kept (24h to 87600h)."`
	EventsFrom   consumer.From       `name:"events-from" env:"PILLARBOX_MAILER_EVENTS_FROM" placeholder:"WHERE" help:"Where this service begins, decided at its first start ever: start (all events that ever were), now, or an RFC 3339 time (events of that time included). Default: with what the stream still keeps."`
	Drain        time.Duration       `name:"drain" env:"PILLARBOX_MAILER_DRAIN" default:"8s" help:"Time that work under way has to finish at a stop (100ms to 5m)."`
}

// FileMode is a file's permission bits, written in octal.
type FileMode fs.FileMode

// UnmarshalText reads "0640" and "640" alike.
func (m *FileMode) UnmarshalText(text []byte) error {
	value, err := strconv.ParseUint(string(text), 8, 32)
	if err != nil {
		return fmt.Errorf("%q is not an octal file mode such as 0640", text)
	}
	*m = FileMode(value)
	return nil
}

// MarshalText writes "0640".
func (m FileMode) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "%04o", uint32(m)), nil }

// Default returns the defaults.
func Default() Config { return Config{}.withDefaults() }

func (c Config) withDefaults() Config {
	c.Sending = c.Sending.withDefaults()
	c.Pickup = cmp.Or(c.Pickup, "pickup")
	c.From = cmp.Or(c.From, "Pillarbox <orders@pillarbox.invalid>")
	c.Domain = cmp.Or(c.Domain, "pillarbox.invalid")
	c.FileMode = cmp.Or(c.FileMode, 0o640)
	c.Batch = cmp.Or(c.Batch, 100)
	c.Dispatch = cmp.Or(c.Dispatch, dispatch.ModeCompeting)
	c.Workers = cmp.Or(c.Workers, 10)
	c.Transactions = cmp.Or(c.Transactions, 2)
	c.Mode = cmp.Or(c.Mode, consumer.ModeGroup)
	c.Lease = cmp.Or(c.Lease, 5*time.Second)
	if c.Mode == consumer.ModeSingle {
		c.Transactions = 1
	}
	c.Attempts = cmp.Or(c.Attempts, 10)
	c.Backoff = cmp.Or(c.Backoff, time.Second)
	c.MaxBackoff = cmp.Or(c.MaxBackoff, time.Hour)
	c.AfterDeath = cmp.Or(c.AfterDeath, consumer.Hold)
	c.Delivery = cmp.Or(c.Delivery, consumer.EffectivelyOnce)
	c.Sweep = cmp.Or(c.Sweep, 5*time.Second)
	c.Keep = cmp.Or(c.Keep, consumer.DefaultKeep)
	c.KeepLetters = cmp.Or(c.KeepLetters, consumer.DefaultKeepLetters)
	c.KeepActions = cmp.Or(c.KeepActions, consumer.DefaultKeepActions)
	c.ReadyAge = cmp.Or(c.ReadyAge, time.Hour)
	c.Drain = cmp.Or(c.Drain, 8*time.Second)
	return c
}

// Validate reports every setting that is out of range.
func (c Config) Validate() error {
	c = c.withDefaults()
	var problems []error
	check := func(ok bool, name, rule string) {
		if !ok {
			problems = append(problems, fmt.Errorf("PILLARBOX_MAILER_%s must be %s", name, rule))
		}
	}
	c.Sending.validate(check)
	_, err := mail.ParseAddress(c.From)
	check(err == nil, "FROM", "one address, as Name <address>")
	check(letter.CheckDomain(c.Domain) == nil, "DOMAIN", "a domain name")
	// Owner may read and write, since the sweeper and the marker need it; nothing is executable.
	check(c.FileMode&0o600 == 0o600 && c.FileMode&^0o666 == 0, "FILE_MODE", "0600 to 0666, without execute bits")
	check(c.Batch >= 1 && c.Batch <= 1000, "BATCH", "1 to 1000")
	check(c.Dispatch.Valid(), "DISPATCH", "competing, single, round-robin or by-key")
	check(c.Workers >= 1 && c.Workers <= 256, "WORKERS", "1 to 256")
	check(c.Transactions >= 1 && c.Transactions <= 16, "TRANSACTIONS", "1 to 16")
	check(c.Mode.Valid(), "MODE", "group or single")
	check(c.Delivery.Valid(), "DELIVERY", "effectively-once, at-least-once or at-most-once")
	check(c.Lease >= time.Second && c.Lease <= time.Minute, "LEASE", "1s to 1m")
	check(pace.Config{Name: c.name(), Rate: c.Rate}.Validate() == nil, "RATE", "0 (unlimited) or 0.001 to 1000000")
	check(c.budget().Validate() == nil, "BURST", "0 (two seconds' worth), or 2 to 1000000000 and at least a fifth of PILLARBOX_MAILER_RATE")
	check(c.Attempts >= 1 && c.Attempts <= 1000, "ATTEMPTS", "1 to 1000")
	check(c.Backoff >= time.Millisecond && c.Backoff <= time.Hour, "BACKOFF", "1ms to 1h")
	check(c.MaxBackoff >= time.Millisecond && c.MaxBackoff <= 24*time.Hour, "MAX_BACKOFF", "1ms to 24h")
	check(c.MaxBackoff >= c.Backoff, "MAX_BACKOFF", "at least PILLARBOX_MAILER_BACKOFF")
	check(c.AfterDeath.Valid(), "AFTER_DEATH", "hold or skip")
	check(c.Sweep >= 100*time.Millisecond && c.Sweep <= 10*time.Minute, "SWEEP", "100ms to 10m")
	check(c.ReadyAge >= time.Second && c.ReadyAge <= 8760*time.Hour, "READY_AGE", "1s to 8760h")
	check(consumer.ValidKeep(c.Keep), "KEEP", consumer.KeepRange)
	check(c.KeepLetters >= 24*time.Hour && c.KeepLetters <= 87600*time.Hour, "KEEP_LETTERS", "24h to 87600h")
	check(c.KeepActions >= 24*time.Hour && c.KeepActions <= 87600*time.Hour, "KEEP_ACTIONS", "24h to 87600h")
	check(c.EventsFrom.Valid(), "EVENTS_FROM", "start, now or an RFC 3339 time such as 2026-01-31T00:00:00Z")
	check(c.EventsFrom == "" || c.Delivery != consumer.AtMostOnce, "EVENTS_FROM", "empty with PILLARBOX_MAILER_DELIVERY=at-most-once: events of the past are published again")
	check(c.Drain >= 100*time.Millisecond && c.Drain <= 5*time.Minute, "DRAIN", "100ms to 5m")
	return errors.Join(problems...)
}

// Remembers is how long events are recognised.
func (c Config) Remembers() time.Duration { return c.withDefaults().Keep }

// keeping: a lane stays while a delivery of its order is not over.
func (c Config) keeping(r *outbox.Registrar, conn *broker.Conn) consumer.Keeping {
	return consumer.Keeping{
		Handled: c.Keep, Letters: c.KeepLetters, Actions: c.KeepActions,
		Horizon: r.Horizon, FirstStored: consumer.FirstStored(conn),
		Own: ledger.Retention(), Holds: []string{ledger.HoldsLane},
	}
}

func (c Config) budget() pace.Config {
	return pace.Config{Name: c.name(), Rate: c.Rate, Burst: c.Burst}
}

// paced cuts groups to what the budget lets pass at once and earns in a second, so that
// replicas take turns. Groups that are only queued need no share.
func (c Config) paced(p *pace.Pacer) Config {
	if p.Limited() && c.Transport == toPickup {
		c.Batch = min(c.Batch, p.Most(), max(1, int(c.Rate)))
	}
	return c
}

// timeout of a group: the default, and under a budget time for a hundred groups before it.
func (c Config) timeout() time.Duration {
	const work, longest = 30 * time.Second, 2 * time.Minute
	if c.Rate == 0 || c.Transport != toPickup {
		return work
	}
	turn := time.Duration(float64(c.Batch) / c.Rate * float64(time.Second))
	return min(work+100*turn, longest)
}

func (c Config) subscriber(r *outbox.Registrar) broker.SubscriberConfig {
	return broker.SubscriberConfig{
		Group:        Name,
		Besides:      []string{events.RouteTopic(Name), events.ReplayTopic(Name)},
		MaxInFlight:  min(c.Batch*c.Transactions, 10_000), // a full group for each
		CloseTimeout: c.Drain,
		OnDurable:    r.Announce,
	}
}

// spread says how the part that is done mail by mail reaches the workers.
func (c Config) spread() dispatch.Spread[*delivery.Draft] {
	return dispatch.Spread[*delivery.Draft]{
		Mode: c.Dispatch, Workers: c.Workers, Key: (*delivery.Draft).Key,
		// All workers write into one folder: its failure pauses the consumer and says nothing about a worker.
		RoundRobin: dispatch.RoundRobinConfig{Fault: func(error) bool { return false }},
	}
}

func (c Config) consumer() consumer.Config {
	return consumer.Config{
		Name:        Name,
		From:        c.EventsFrom,
		Ordered:     ordered,
		AfterDeath:  c.AfterDeath,
		Delivery:    c.Delivery,
		Batch:       c.Batch,
		Workers:     c.Transactions,
		Mode:        c.Mode,
		Lease:       c.Lease,
		MaxAttempts: c.Attempts,
		Backoff:     c.Backoff,
		MaxBackoff:  c.MaxBackoff,
		Timeout:     c.timeout(),
		Drain:       c.Drain,
	}
}
