package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/events"
	"github.com/pillarbox/pillarbox/shared/lease"
	"github.com/pillarbox/pillarbox/shared/logs"
	"github.com/prometheus/client_golang/prometheus"
)

const (
	leaseName = "relay"
	// hintEvery bounds the wake hints of one replica: a burst of commits is one hint, not as many.
	hintEvery = 5 * time.Millisecond
)

// Config of the relay; zero values mean the defaults.
type Config struct {
	Stream   string        // default events.StreamOrders
	Topic    string        // default events.TopicOrders
	Holder   string        // lease holder name, unique per process; required
	LeaseTTL time.Duration // default 5 s
	Poll     time.Duration // default 500 ms
	Horizon  time.Duration // how far back history can be refilled and is kept in the stream; default 72 h
	MaxBytes int64         // of the stream; default 1 GiB
	Replicas int           // of the stream; default 1
	// Route are the consumers that events go to in turn when Sequential, at least one. In the parallel
	// mode it only says how much room to leave for what is still on a route from before.
	Route      events.Route
	Sequential bool
}

func (c Config) withDefaults() Config {
	if c.Stream == "" {
		c.Stream = events.StreamOrders
	}
	if c.Topic == "" {
		c.Topic = events.TopicOrders
	}
	if c.LeaseTTL == 0 {
		c.LeaseTTL = 5 * time.Second
	}
	if c.Poll == 0 {
		c.Poll = 500 * time.Millisecond
	}
	if c.Horizon == 0 {
		c.Horizon = 72 * time.Hour
	}
	if c.MaxBytes == 0 {
		c.MaxBytes = 1 << 30
	}
	if c.Replicas == 0 {
		c.Replicas = 1
	}
	return c
}

// Validate lists all that is wrong with c.
func (c Config) Validate() error {
	c = c.withDefaults()
	var errs []error
	if c.Holder == "" || len(c.Holder) > 200 {
		errs = append(errs, errors.New("relay holder must have 1 to 200 characters"))
	}
	if c.LeaseTTL < 100*time.Millisecond {
		errs = append(errs, errors.New("relay lease time must be at least 100 ms"))
	}
	if c.Poll < time.Millisecond {
		errs = append(errs, errors.New("relay poll must be at least 1 ms"))
	}
	if c.Horizon < time.Minute {
		errs = append(errs, errors.New("relay horizon must be at least 1 minute"))
	}
	if c.MaxBytes < 1<<20 {
		errs = append(errs, errors.New("stream size must be at least 1 MiB"))
	}
	if c.Topic != c.Stream && !strings.HasPrefix(c.Topic, c.Stream+".") || strings.ContainsAny(c.Topic, "*> \t\r\n") {
		// The broker would refuse each event for ever, and each would become a dead row.
		errs = append(errs, errors.New("relay topic must be a subject of the stream"))
	}
	if err := c.checkRoute(); err != nil {
		errs = append(errs, fmt.Errorf("relay route: %w", err))
	}
	if c.Replicas < 1 || c.Replicas > 5 {
		errs = append(errs, errors.New("stream replicas must be 1 to 5"))
	}
	return errors.Join(errs...)
}

// Relay publishes the outbox. One replica leads; each answers registrations.
type Relay struct {
	c       Config
	db      *database.DB
	conn    *broker.Conn
	pub     *broker.Publisher
	lease   *lease.Lease
	log     *slog.Logger
	metrics *metrics
	leading atomic.Bool
	wake    chan struct{} // capacity 1: a signal for the leading loop
	hint    chan struct{} // capacity 1: a signal to tell the other replicas

	purgeEvery time.Duration
	hook       func(step string) // set by tests before Run
}

// NewRelay checks its arguments; it does no I/O. reg may be nil.
func NewRelay(c Config, db *database.DB, conn *broker.Conn, log *slog.Logger, reg prometheus.Registerer) (*Relay, error) {
	if db == nil || conn == nil || log == nil {
		return nil, errors.New("relay needs a database, a broker connection and a logger")
	}
	if err := c.Validate(); err != nil {
		return nil, err
	}
	c = c.withDefaults()
	l, err := lease.New(lease.Config{Name: leaseName, Holder: c.Holder, TTL: c.LeaseTTL, Hints: lease.Over(conn.NATS)}, db, log)
	if err != nil {
		return nil, err
	}
	if reg != nil {
		if err := reg.Register(l); err != nil {
			return nil, fmt.Errorf("register lease metrics: %w", err)
		}
	}
	return &Relay{
		c: c, db: db, conn: conn, pub: broker.NewPublisher(conn, broker.PublisherConfig{}), lease: l, log: log,
		metrics: newMetrics(reg), wake: make(chan struct{}, 1), hint: make(chan struct{}, 1),
		purgeEvery: purgeEvery,
	}, nil
}

// Run relays until ctx ends, finishes what it has under way and hands the lease over.
func (r *Relay) Run(ctx context.Context) (err error) {
	answers, err := r.answerConsumers(ctx)
	if err != nil {
		return err
	}
	// Also when the lease fails: nobody may go on after Run has returned.
	ctx, cancel := context.WithCancel(ctx)
	var others sync.WaitGroup
	others.Go(func() { r.metrics.watch(ctx, r.db) })
	others.Go(func() { r.sendHints(ctx) })
	defer func() {
		cancel()
		others.Wait()
		err = errors.Join(err, answers.stop(), r.pub.Close())
	}()
	return r.lease.Run(ctx, r.lead)
}

// Wake says that rows were committed. It never blocks; it also hints the leading replica over the broker.
func (r *Relay) Wake() {
	signal(r.wake) // also when another leads: this replica may be about to
	if !r.leading.Load() {
		signal(r.hint)
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // one is waiting already, and whoever takes it looks after this moment
	}
}

// sendHints publishes at most one hint per hintEvery. A hint that is lost costs
// a poll interval, so its errors are nobody's business.
func (r *Relay) sendHints(ctx context.Context) {
	tick := time.NewTicker(hintEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.hint:
		}
		if r.conn.NATS.IsConnected() {
			_ = r.conn.NATS.Publish(wakeSubject(r.c.Stream), nil)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func wakeSubject(stream string) string { return "pillarbox.wake." + stream }

// lead is one term of leadership.
func (r *Relay) lead(ctx context.Context, term int64) error {
	hints, err := r.conn.NATS.Subscribe(wakeSubject(r.c.Stream), func(*nats.Msg) { signal(r.wake) })
	if err != nil {
		return fmt.Errorf("subscribe to wake hints: %w", err)
	}
	r.leading.Store(true)
	r.metrics.leader.Set(1)
	defer func() {
		r.leading.Store(false)
		r.metrics.leader.Set(0)
		r.metrics.refilling.Set(0)
		r.metrics.purgeBlocked.Set(0)
		r.metrics.replays.Set(0)
		_ = hints.Unsubscribe() // fails only on a closed connection, which has no subscriptions
	}()
	l := &leader{
		r: r, term: term, log: r.log.With(logs.Term, term), limit: maxRows, consumers: map[string]seen{},
		replays: replays{careful: map[string]bool{}},
	}
	err = l.run(ctx)
	if errors.Is(err, lease.ErrLost) {
		r.metrics.conflicts.Inc()
		l.log.WarnContext(ctx, "relay write refused: another replica leads")
		return nil
	}
	return err
}
