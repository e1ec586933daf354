// Package mailersvc is all that the world may see of the mailer service: one
// e-mail for each order event and each mail request, as a file in the pickup
// folder or handed to a mail server.
//
// It promises one mail per event with any number of replicas, in version order
// for each order, and that nothing is acknowledged before its file is durably
// in the folder or it stands in the queue for the mail server. It does not promise
// that a mail that was handed over reaches anybody. What a crash leaves is said in
// internal/delivery and internal/sender.
package mailersvc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pillarbox/pillarbox/services/mailer/internal/delivery"
	"github.com/pillarbox/pillarbox/services/mailer/internal/letter"
	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/consumer"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/dispatch"
	"github.com/pillarbox/pillarbox/shared/events"
	"github.com/pillarbox/pillarbox/shared/lease"
	"github.com/pillarbox/pillarbox/shared/outbox"
	"github.com/pillarbox/pillarbox/shared/pace"
	"github.com/pillarbox/pillarbox/shared/retention"
)

// Name is the service's name: its schema, consumer group and metric prefix.
const Name = "mailer"

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
	db       *database.DB
	log      *slog.Logger
	way      transport
	consumer *consumer.Consumer
	pacer    *pace.Pacer

	subscriber *broker.Subscriber
	registrar  *outbox.Registrar
	lag        *consumer.Lag
	cleaner    *retention.Cleaner
}

// New checks c and d; it does no I/O and starts nothing.
func New(c Config, d Deps) (*Service, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if d.DB == nil || d.Broker == nil || d.Log == nil {
		return nil, errors.New("mailer: database, broker and log are required")
	}
	c = c.withDefaults()
	pacer, err := newPacer(c.budget(), d)
	if err != nil {
		return nil, fmt.Errorf("mailer: %w", err)
	}
	c = c.paced(pacer)
	letters, err := letter.New(letter.Config{From: c.From, Domain: c.Domain})
	if err != nil {
		return nil, fmt.Errorf("mailer: %w", err)
	}
	drafts, err := newDrafts(c, letters, d.Registry)
	if err != nil {
		return nil, fmt.Errorf("mailer: %w", err)
	}
	way, err := newTransport(c, d, letters, drafts, pacer)
	if err != nil {
		return nil, fmt.Errorf("mailer: %w", err)
	}
	registrar := outbox.NewRegistrar(d.Broker, events.StreamOrders, Name, d.Log)
	subscriber, err := broker.NewSubscriber(d.Broker, c.subscriber(registrar))
	if err != nil {
		return nil, fmt.Errorf("mailer: %w", err)
	}
	s := &Service{db: d.DB, log: d.Log, way: way, subscriber: subscriber, registrar: registrar, pacer: pacer}
	s.consumer, err = consumer.New(c.consumer(), consumer.Deps{
		DB:         d.DB,
		Subscriber: subscriber,
		Effect:     way.effect(),
		Publisher:  broker.NewPublisher(d.Broker, broker.PublisherConfig{}),
		Log:        d.Log,
		Past:       registrar,
		Registry:   d.Registry,
		Hints:      lease.Over(d.Broker.NATS),
	})
	if err != nil {
		return nil, fmt.Errorf("mailer: %w", err)
	}
	s.lag, err = consumer.NewLag(consumer.LagConfig{Name: Name, Limit: c.ReadyAge}, d.Broker, d.DB, d.Log, d.Registry)
	if err != nil {
		return nil, fmt.Errorf("mailer: %w", err)
	}
	s.cleaner, err = retention.New(retention.Config{}, retention.Deps{DB: d.DB, Log: d.Log, Registry: d.Registry},
		s.consumer.Retention(c.keeping(registrar, d.Broker))...)
	if err != nil {
		return nil, fmt.Errorf("mailer: %w", err)
	}
	return s, nil
}

func newPacer(c pace.Config, d Deps) (*pace.Pacer, error) {
	pacer, err := pace.New(c, d.DB)
	if err != nil || d.Registry == nil {
		return pacer, err
	}
	if err := d.Registry.Register(pacer); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	return pacer, nil
}

// newDrafts returns the strategy that renders and writes mails, with the measurement in front of each.
func newDrafts(c Config, r *letter.Renderer, metrics prometheus.Registerer) (dispatch.Strategy[*delivery.Draft], error) {
	meter, err := dispatch.NewMeter("draft", metrics)
	if err != nil {
		return nil, err
	}
	return dispatch.New(c.spread(), dispatch.Measure(meter, (*delivery.Draft).MadeAt, delivery.Drafting(r)))
}

// Handler is nil: the service has no HTTP API.
func (s *Service) Handler() http.Handler { return nil }

// Operator is what a person may do with the service's parked events and dead letters.
func (s *Service) Operator() *consumer.Operator { return s.consumer.Operator() }

// Operator is the same on a database that no service works on.
func Operator(db *database.DB, log *slog.Logger) *consumer.Operator {
	return consumer.NewOperator(Name, ordered, db, log)
}

// Run works until ctx ends, then drains. It returns after its last goroutine. Call it once.
func (s *Service) Run(ctx context.Context) error {
	// The helpers outlive the drain: its last groups are to be finished.
	helping, stop := context.WithCancel(context.WithoutCancel(ctx))
	var helpers sync.WaitGroup
	helpers.Go(func() { s.registrar.Run(helping) })
	helpers.Go(func() { s.lag.Run(helping) })
	helpers.Go(func() { s.cleaner.Run(ctx) })
	helpers.Go(func() { s.way.run(ctx, helping) })
	// Who waits for the budget at the stop gives its mails back: others have the same budget.
	defer context.AfterFunc(ctx, s.pacer.Close)()
	err := s.consumer.Run(ctx)
	stop()
	helpers.Wait()
	return err
}

// Note is what an operator should know of a service that is ready, or "".
func (s *Service) Note() string { return s.consumer.Status().Note() }

// Ready reports why the service cannot do its work now, or nil.
func (s *Service) Ready(ctx context.Context) error {
	if err := s.db.Ping(ctx); err != nil {
		return fmt.Errorf("database: %w", err)
	}
	if err := s.way.ready(ctx); err != nil {
		return err
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
	if err := s.subscriber.Working(); err != nil {
		return fmt.Errorf("subscription: %w", err)
	}
	return nil
}
