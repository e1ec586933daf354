package storesvc

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/pillarbox/pillarbox/services/store/internal/httpapi"
	"github.com/pillarbox/pillarbox/services/store/internal/intake"
	"github.com/pillarbox/pillarbox/shared/outbox"
)

// Config of the service. A field that is zero has its default, so that the zero value works.
type Config struct {
	Intake           string        `name:"intake" env:"PILLARBOX_STORE_INTAKE" default:"group" help:"How placements become transactions: group (one for all that wait), single (one for each request) or async (answered 202 and kept in memory before they are stored, so that a crash loses up to twice the flush count; an Idempotency-Key is then refused with 400)."`
	IntakeFlushEvery time.Duration `name:"intake-flush-every" env:"PILLARBOX_STORE_INTAKE_FLUSH_EVERY" default:"50ms" help:"Time after which orders in memory are stored with async intake (1ms to 10s)."`
	IntakeFlushCount int           `name:"intake-flush-count" env:"PILLARBOX_STORE_INTAKE_FLUSH_COUNT" default:"500" help:"Orders in memory that are stored at once with async intake; at most twice as many are in memory, more are answered 503 (1 to 10000)."`
	IntakeQueue      int           `name:"intake-queue" env:"PILLARBOX_STORE_INTAKE_QUEUE" default:"1000" help:"Most requests that wait to be stored; more are answered 503 (1 to 100000)."`
	IntakeGroup      int           `name:"intake-group" env:"PILLARBOX_STORE_INTAKE_GROUP" default:"100" help:"Most requests stored in one transaction (1 to 500)."`
	IntakeCommitters int           `name:"intake-committers" env:"PILLARBOX_STORE_INTAKE_COMMITTERS" default:"2" help:"Transactions at a time (1 to 16)."`
	IntakeWait       time.Duration `name:"intake-wait" env:"PILLARBOX_STORE_INTAKE_WAIT" default:"5s" help:"Time a request may wait to be stored before it is answered 503 (100ms to 10s)."`
	BodyBudget       int64         `name:"body-budget" env:"PILLARBOX_STORE_BODY_BUDGET" default:"67108864" help:"Most bytes of all request bodies in memory at once; more are answered 503 (2097152 to 17179869184)."`
	BatchBody        int64         `name:"batch-body" env:"PILLARBOX_STORE_BATCH_BODY" default:"8388608" help:"Largest body of a batch of orders in bytes; half of the body budget where that is less (1048576 to 67108864)."`
	OutboxLimit      int64         `name:"outbox-limit" env:"PILLARBOX_STORE_OUTBOX_LIMIT" default:"1000000" help:"Most events that wait for the broker; above it writes are answered 503 (1 to 100000000)."`
	OutboxMaxAge     time.Duration `name:"outbox-max-age" env:"PILLARBOX_STORE_OUTBOX_MAX_AGE" default:"1h" help:"Time for which this process may see the oldest event wait for the broker before it counts as not ready (1s to 24h)."`
	KeyRetention     time.Duration `name:"key-retention" env:"PILLARBOX_STORE_KEY_RETENTION" default:"48h" help:"Time that answers to idempotency keys are kept (24h to 8760h)."`
	StreamMaxBytes   int64         `name:"stream-max-bytes" env:"PILLARBOX_STORE_STREAM_MAX_BYTES" default:"1073741824" help:"Size of the event stream in bytes; a full one stops the relay (1048576 to 1099511627776)."`
	StreamReplicas   int           `name:"stream-replicas" env:"PILLARBOX_STORE_STREAM_REPLICAS" default:"1" help:"Copies of the event stream in the broker's cluster (1, 3 or 5)."`
	Horizon          time.Duration `name:"horizon" env:"PILLARBOX_STORE_HORIZON" default:"72h" help:"Time that events stay in the stream and can be refilled (1h to 8760h)."`
	RelayLease       time.Duration `name:"relay-lease" env:"PILLARBOX_STORE_RELAY_LEASE" default:"5s" help:"Time after which another replica takes over the relay of a silent one (1s to 1m)."`
	RelayPoll        time.Duration `name:"relay-poll" env:"PILLARBOX_STORE_RELAY_POLL" default:"500ms" help:"Time between two looks for events that nobody announced (10ms to 1m)."`
	Fanout           string        `name:"fanout" env:"PILLARBOX_FANOUT" default:"parallel" help:"Who gets an event when: parallel (every subscriber at once) or sequential (one after another along the route, each when the one before has succeeded)."`
	FanoutRoute      string        `name:"fanout-route" env:"PILLARBOX_FANOUT_ROUTE" default:"mailer,audit,loyalty" help:"The subscribers in the order of sequential fan-out, separated by commas (1 to 16; who is not named gets nothing then)."`
	Drain            time.Duration `name:"drain" env:"PILLARBOX_STORE_DRAIN" default:"8s" help:"Time that waiting requests have to be stored at a stop (100ms to 5m)."`
}

// Default returns the defaults.
func Default() Config { return Config{}.withDefaults() }

func (c Config) withDefaults() Config {
	c.Intake = cmp.Or(c.Intake, string(intake.ModeGroup))
	c.IntakeFlushEvery = cmp.Or(c.IntakeFlushEvery, 50*time.Millisecond)
	c.IntakeFlushCount = cmp.Or(c.IntakeFlushCount, 500)
	c.IntakeQueue = cmp.Or(c.IntakeQueue, 1000)
	c.IntakeGroup = cmp.Or(c.IntakeGroup, 100)
	c.IntakeCommitters = cmp.Or(c.IntakeCommitters, 2)
	c.IntakeWait = cmp.Or(c.IntakeWait, 5*time.Second)
	c.BodyBudget = cmp.Or(c.BodyBudget, 64<<20)
	c.BatchBody = cmp.Or(c.BatchBody, 8<<20)
	c.OutboxLimit = cmp.Or(c.OutboxLimit, 1_000_000)
	c.OutboxMaxAge = cmp.Or(c.OutboxMaxAge, time.Hour)
	c.KeyRetention = cmp.Or(c.KeyRetention, 48*time.Hour)
	c.StreamMaxBytes = cmp.Or(c.StreamMaxBytes, 1<<30)
	c.StreamReplicas = cmp.Or(c.StreamReplicas, 1)
	c.Horizon = cmp.Or(c.Horizon, 72*time.Hour)
	c.RelayLease = cmp.Or(c.RelayLease, 5*time.Second)
	c.RelayPoll = cmp.Or(c.RelayPoll, 500*time.Millisecond)
	c.Fanout = cmp.Or(c.Fanout, fanoutParallel)
	c.FanoutRoute = cmp.Or(c.FanoutRoute, "mailer,audit,loyalty")
	c.Drain = cmp.Or(c.Drain, 8*time.Second)
	return c
}

// Validate reports every setting that is out of range.
func (c Config) Validate() error {
	c = c.withDefaults()
	var problems []error
	check := func(ok bool, name, rule string) {
		if !ok {
			problems = append(problems, fmt.Errorf("PILLARBOX_STORE_%s must be %s", name, rule))
		}
	}
	within := func(d, low, high time.Duration) bool { return d >= low && d <= high }
	switch intake.Mode(c.Intake) {
	case intake.ModeGroup, intake.ModeSingle, intake.ModeAsync:
	default:
		check(false, "INTAKE", "group, single or async")
	}
	check(within(c.IntakeFlushEvery, time.Millisecond, 10*time.Second), "INTAKE_FLUSH_EVERY", "1ms to 10s")
	check(c.IntakeFlushCount >= 1 && c.IntakeFlushCount <= 10_000, "INTAKE_FLUSH_COUNT", "1 to 10000")
	check(c.IntakeQueue >= 1 && c.IntakeQueue <= 100_000, "INTAKE_QUEUE", "1 to 100000")
	check(c.IntakeGroup >= 1 && c.IntakeGroup <= 500, "INTAKE_GROUP", "1 to 500")
	check(c.IntakeCommitters >= 1 && c.IntakeCommitters <= 16, "INTAKE_COMMITTERS", "1 to 16")
	// The HTTP server gives an answer 30 s: the wait, a transaction's time-out and retries fit in there.
	check(within(c.IntakeWait, 100*time.Millisecond, 10*time.Second), "INTAKE_WAIT", "100ms to 10s")
	check(c.BodyBudget >= 2<<20 && c.BodyBudget <= 16<<30, "BODY_BUDGET", "2097152 to 17179869184")
	check(c.BatchBody >= 1<<20 && c.BatchBody <= 64<<20, "BATCH_BODY", "1048576 to 67108864")
	check(c.OutboxLimit >= 1 && c.OutboxLimit <= 100_000_000, "OUTBOX_LIMIT", "1 to 100000000")
	check(within(c.OutboxMaxAge, time.Second, 24*time.Hour), "OUTBOX_MAX_AGE", "1s to 24h")
	check(within(c.KeyRetention, 24*time.Hour, 8760*time.Hour), "KEY_RETENTION", "24h to 8760h")
	check(c.StreamMaxBytes >= 1<<20 && c.StreamMaxBytes <= 1<<40, "STREAM_MAX_BYTES", "1048576 to 1099511627776")
	check(c.StreamReplicas == 1 || c.StreamReplicas == 3 || c.StreamReplicas == 5, "STREAM_REPLICAS", "1, 3 or 5")
	check(within(c.Horizon, time.Hour, 8760*time.Hour), "HORIZON", "1h to 8760h")
	check(within(c.RelayLease, time.Second, time.Minute), "RELAY_LEASE", "1s to 1m")
	check(within(c.RelayPoll, 10*time.Millisecond, time.Minute), "RELAY_POLL", "10ms to 1m")
	check(within(c.Drain, 100*time.Millisecond, 5*time.Minute), "DRAIN", "100ms to 5m")
	problems = append(problems, c.checkFanout())
	return errors.Join(problems...)
}

// Copies is how many copies of the event stream there should be.
func (c Config) Copies() int { return c.withDefaults().StreamReplicas }

// ReplayHorizon is how far back events can be published again.
func (c Config) ReplayHorizon() time.Duration { return c.withDefaults().Horizon }

func (c Config) intake() intake.Config {
	return intake.Config{
		Mode: intake.Mode(c.Intake), Queue: c.IntakeQueue, Group: c.IntakeGroup, Committers: c.IntakeCommitters,
		Wait: c.IntakeWait, Drain: c.Drain, FlushEvery: c.IntakeFlushEvery, FlushCount: c.IntakeFlushCount,
	}
}

func (c Config) httpapi() httpapi.Config {
	return httpapi.Config{
		// Twice what the intake can hold: it refuses the rest anyway.
		Keys:       2 * (c.IntakeQueue + c.IntakeCommitters*c.IntakeGroup),
		BodyBudget: c.BodyBudget, BatchBody: c.BatchBody, Async: intake.Mode(c.Intake) == intake.ModeAsync,
	}
}

func (c Config) relay(holder string) outbox.Config {
	return outbox.Config{
		Holder: holder, LeaseTTL: c.RelayLease, Poll: c.RelayPoll, Horizon: c.Horizon,
		MaxBytes: c.StreamMaxBytes, Replicas: c.StreamReplicas,
		Route: c.route(), Sequential: c.Fanout == fanoutSequential,
	}
}
