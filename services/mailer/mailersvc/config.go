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
	"github.com/pillarbox/pillarbox/shared/outbox"
	"github.com/pillarbox/pillarbox/shared/pace"
)

// Config of the service. A field that is zero has its default, so that the zero value works.
type Config struct {
	Sending         `embed:""`
	consumer.Policy `embed:"" envprefix:"PILLARBOX_MAILER_"`

	Pickup       string            `name:"pickup" env:"PILLARBOX_MAILER_PICKUP" placeholder:"FOLDER" help:"Folder in which mails appear as .eml files (default ./pickup; in the suite, pickup in its data folder)."`
	From         string            `name:"from" env:"PILLARBOX_MAILER_FROM" default:"Pillarbox <orders@pillarbox.invalid>" help:"Sender of the mails, as Name <address>."`
	Domain       string            `name:"domain" env:"PILLARBOX_MAILER_DOMAIN" default:"pillarbox.invalid" help:"Domain in the mails' Message-IDs, and the mailer's name to a mail server."`
	FileMode     FileMode          `name:"file-mode" env:"PILLARBOX_MAILER_FILE_MODE" default:"0640" help:"Mode of the .eml files, octal, whatever the umask (0600 to 0666)."`
	Batch        int               `name:"batch" env:"PILLARBOX_MAILER_BATCH" default:"100" help:"Most mails made durable in one transaction (1 to 1000)."`
	Dispatch     dispatch.Mode     `name:"dispatch" env:"PILLARBOX_MAILER_DISPATCH" default:"competing" help:"How the mails of a transaction are spread over the workers: competing (first free takes the next), single (one after another), round-robin (fixed turn), by-key (all of one order to one worker)."`
	Workers      int               `name:"workers" env:"PILLARBOX_MAILER_WORKERS" default:"10" help:"Workers that render and write mails, and those that hand them to a mail server, each one at a time; single has one (1 to 256)."`
	Transactions int               `name:"transactions" env:"PILLARBOX_MAILER_TRANSACTIONS" default:"2" help:"Transactions at a time (1 to 16)."`
	Delivery     consumer.Delivery `name:"delivery" env:"PILLARBOX_MAILER_DELIVERY" default:"effectively-once" help:"What a crash does to an event: effectively-once (comes again and takes effect once, in order), at-least-once (comes again; nobody waits for order) or at-most-once (lost, also when it fails)."`
	Rate         float64           `name:"rate" env:"PILLARBOX_MAILER_RATE" default:"0" help:"Mails per second that all replicas together hand to the transport (0.001 to 1000000; 0: unlimited)."`
	Burst        int               `name:"burst" env:"PILLARBOX_MAILER_BURST" default:"0" help:"Mails that may go at once after a quiet time (at least 2 and a fifth of a second's worth; 0: two seconds' worth)."`
	Sweep        time.Duration     `name:"sweep" env:"PILLARBOX_MAILER_SWEEP" default:"5s" help:"Time after which mails that a crash left unpublished are published by another replica, and between two looks for them (100ms to 10m)."`
	Keep         time.Duration     `name:"keep" env:"PILLARBOX_MAILER_KEEP" default:"720h" help:"Time that deliveries which are over, and orders at rest, are remembered; at least PILLARBOX_STORE_HORIZON and 2h (3h to 87600h)."`
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
	c.Policy = c.Policy.WithDefaults()
	c.Pickup = cmp.Or(c.Pickup, "pickup")
	c.From = cmp.Or(c.From, "Pillarbox <orders@pillarbox.invalid>")
	c.Domain = cmp.Or(c.Domain, "pillarbox.invalid")
	c.FileMode = cmp.Or(c.FileMode, 0o640)
	c.Batch = cmp.Or(c.Batch, 100)
	c.Dispatch = cmp.Or(c.Dispatch, dispatch.ModeCompeting)
	c.Workers = cmp.Or(c.Workers, 10)
	c.Transactions = cmp.Or(c.Transactions, 2)
	if c.Mode == consumer.ModeSingle {
		c.Transactions = 1
	}
	c.Delivery = cmp.Or(c.Delivery, consumer.EffectivelyOnce)
	c.Sweep = cmp.Or(c.Sweep, 5*time.Second)
	c.Keep = cmp.Or(c.Keep, consumer.DefaultKeep)
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
	c.Policy.Check("PILLARBOX_MAILER_", c.Delivery, check)
	_, err := mail.ParseAddress(c.From)
	check(err == nil, "FROM", "one address, as Name <address>")
	check(letter.CheckDomain(c.Domain) == nil, "DOMAIN", "a domain name")
	// Owner may read and write, since the sweeper and the marker need it; nothing is executable.
	check(c.FileMode&0o600 == 0o600 && c.FileMode&^0o666 == 0, "FILE_MODE", "0600 to 0666, without execute bits")
	check(c.Batch >= 1 && c.Batch <= 1000, "BATCH", "1 to 1000")
	check(c.Dispatch.Valid(), "DISPATCH", "competing, single, round-robin or by-key")
	check(c.Workers >= 1 && c.Workers <= 256, "WORKERS", "1 to 256")
	check(c.Transactions >= 1 && c.Transactions <= 16, "TRANSACTIONS", "1 to 16")
	check(pace.Config{Name: c.name(), Rate: c.Rate}.Validate() == nil, "RATE", "0 (unlimited) or 0.001 to 1000000")
	check(c.budget().Validate() == nil, "BURST", "0 (two seconds' worth), or 2 to 1000000000 and at least a fifth of PILLARBOX_MAILER_RATE")
	check(c.Sweep >= 100*time.Millisecond && c.Sweep <= 10*time.Minute, "SWEEP", "100ms to 10m")
	check(consumer.ValidKeep(c.Keep), "KEEP", consumer.KeepRange)
	return errors.Join(problems...)
}

// Remembers is how long events are recognised.
func (c Config) Remembers() time.Duration { return c.withDefaults().Keep }

// settings of the mailer's consumer: its workers are for each mail, its transactions what others call workers.
func (c Config) settings() consumer.Settings {
	return consumer.Settings{Batch: c.Batch, Workers: c.Transactions, Delivery: c.Delivery, Policy: c.Policy}
}

// keeping: a lane stays while a delivery of its order is not over.
func (c Config) keeping(r *outbox.Registrar, conn *broker.Conn) consumer.Keeping {
	k := c.settings().Keeping(c.Keep, r.Horizon, conn)
	k.Own, k.Holds = ledger.Retention(), []string{ledger.HoldsLane}
	return k
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
	s := c.settings().Subscriber(Name)
	s.OnDurable = r.Announce
	return s
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
	k := c.settings().Consumer(Name, ordered)
	k.Timeout = c.timeout()
	return k
}
