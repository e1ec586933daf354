// Package loyaltysvc is all that the world may see of the loyalty service: it takes
// order events from the broker, posts each once and those of one order in order (see
// ledger), and serves the accounts (see httpapi). Replicas share the events; a replica
// that dies leaves its events to the others, and the ledger keeps no trace of it.
package loyaltysvc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pillarbox/pillarbox/services/loyalty/internal/httpapi"
	"github.com/pillarbox/pillarbox/services/loyalty/internal/ledger"
	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/consumer"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/events"
	"github.com/pillarbox/pillarbox/shared/lease"
	"github.com/pillarbox/pillarbox/shared/outbox"
	"github.com/pillarbox/pillarbox/shared/retention"
)

// Name is the service's name: its schema, consumer group and metric prefix.
const Name = "loyalty"

// ordered: whether the versions of an order take effect in their order.
const ordered = true

// Deps are what the service borrows; it closes none of them.
type Deps struct {
	DB       *database.DB
	Broker   *broker.Conn
	Log      *slog.Logger
	Registry prometheus.Registerer // nil: the metrics are kept and not shown
}

// Service is one replica.
type Service struct {
	db         *database.DB
	consumer   *consumer.Consumer
	subscriber *broker.Subscriber
	subscribed atomic.Bool // since the start, once
	registrar  *outbox.Registrar
	lag        *consumer.Lag
	cleaner    *retention.Cleaner
	handler    http.Handler
}

// New checks c and d; it does no I/O and starts nothing.
func New(c Config, d Deps) (*Service, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if d.DB == nil || d.Broker == nil || d.Log == nil {
		return nil, errors.New("loyalty: database, broker and log are required")
	}
	registrar := outbox.NewRegistrar(d.Broker, events.StreamOrders, Name, d.Log)
	reading := c.Subscriber(Name)
	reading.OnDurable = registrar.Announce
	subscriber, err := broker.NewSubscriber(d.Broker, reading)
	if err != nil {
		return nil, fmt.Errorf("loyalty: %w", err)
	}
	k, err := consumer.New(c.Consumer(Name, ordered), consumer.Deps{
		DB:         d.DB,
		Subscriber: subscriber,
		Effect:     consumer.Apply(ledger.Record),
		Publisher:  broker.NewPublisher(d.Broker, broker.PublisherConfig{}),
		Log:        d.Log,
		Past:       registrar,
		Registry:   d.Registry,
		Hints:      lease.Over(d.Broker.NATS),
	})
	if err != nil {
		return nil, fmt.Errorf("loyalty: %w", err)
	}
	lag, err := consumer.NewLag(consumer.LagConfig{Name: Name, Limit: c.WithDefaults().ReadyAge}, d.Broker, d.DB, d.Log, d.Registry)
	if err != nil {
		return nil, fmt.Errorf("loyalty: %w", err)
	}
	// The ledger is kept for ever.
	cleaner, err := retention.New(retention.Config{}, retention.Deps{DB: d.DB, Log: d.Log, Registry: d.Registry},
		k.Retention(c.Keeping(c.Remembers(), registrar.Horizon, d.Broker))...)
	if err != nil {
		return nil, fmt.Errorf("loyalty: %w", err)
	}
	return &Service{db: d.DB, consumer: k, subscriber: subscriber, registrar: registrar, lag: lag, cleaner: cleaner, handler: httpapi.New(ledger.New(d.DB), d.Log)}, nil
}

// Handler is the service's HTTP API.
func (s *Service) Handler() http.Handler { return s.handler }

// Operator is what a person may do with the service's parked events and dead letters.
func (s *Service) Operator() *consumer.Operator { return s.consumer.Operator() }

// Operator is the same on a database that no service works on.
func Operator(db *database.DB, log *slog.Logger) *consumer.Operator {
	return consumer.NewOperator(Name, ordered, db, log)
}

// Run works until ctx ends, then drains. It returns after its last goroutine. Call it once.
func (s *Service) Run(ctx context.Context) error {
	registering, stop := context.WithCancel(ctx)
	var helper sync.WaitGroup
	helper.Go(func() { s.registrar.Run(registering) })
	helper.Go(func() { s.lag.Run(registering) })
	helper.Go(func() { s.cleaner.Run(registering) })
	err := s.consumer.Run(ctx)
	stop()
	helper.Wait()
	return err
}

// Note is what an operator should know of a service that is ready, or "".
func (s *Service) Note() string { return s.consumer.Status().Note() }

// Ready reports why the service cannot do its work now, or nil.
func (s *Service) Ready(ctx context.Context) error {
	if err := s.db.Ping(ctx); err != nil {
		return fmt.Errorf("database: %w", err)
	}
	status := s.consumer.Status()
	if status.Paused != "" {
		return fmt.Errorf("consumer is paused: %s", status.Paused)
	}
	if status.StandsBy { // and has no subscription
		return nil
	}
	if err := s.lag.Ready(); err != nil {
		return err
	}
	// A start counts once events come. After that a broker that is away is no reason to
	// turn queries away.
	if !s.subscribed.Load() {
		if err := s.subscriber.Working(); err != nil {
			return fmt.Errorf("subscription: %w", err)
		}
		s.subscribed.Store(true)
	}
	return nil
}
