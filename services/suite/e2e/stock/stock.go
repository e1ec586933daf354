// Package stock is an example of a subscriber of one's own: it counts what is ordered of each article. It is built
// of the shared packages only; the store and the other services neither know nor start it.
//
// It promises what every ordered consumer does: each event takes effect once, those of an order in order, with any
// number of replicas. A crash leaves messages that come again, and rows of parked.
package stock

import (
	"context"
	"embed"
	"fmt"
	"log/slog"
	"sync"

	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/consumer"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/events"
	"github.com/pillarbox/pillarbox/shared/outbox"
	"github.com/pillarbox/pillarbox/shared/retention"
)

//go:embed postgres/*.sql sqlite/*.sql
var migrations embed.FS

// Open makes the tables in a schema (or a SQLite file) of the subscriber's own.
func Open(ctx context.Context, url, schema string) (*database.DB, error) {
	o := database.Options{Schema: schema}
	if err := database.Migrate(ctx, url, migrations, o); err != nil {
		return nil, err
	}
	return database.Open(url, o)
}

// Service is one replica.
type Service struct {
	consumer  *consumer.Consumer
	registrar *outbox.Registrar
	cleaner   *retention.Cleaner
}

// New builds a replica of the subscriber called name. It does no I/O.
func New(name string, s consumer.Settings, db *database.DB, conn *broker.Conn, log *slog.Logger) (*Service, error) {
	if err := s.Validate("PILLARBOX_STOCK_"); err != nil {
		return nil, err
	}
	// The registrar has the store keep what this subscriber has not read, and asks for what it wants of the past.
	registrar := outbox.NewRegistrar(conn, events.StreamOrders, name, log)
	reading := s.Subscriber(name)
	reading.OnDurable = registrar.Announce
	subscriber, err := broker.NewSubscriber(conn, reading)
	if err != nil {
		return nil, err
	}
	k, err := consumer.New(s.Consumer(name, true), consumer.Deps{
		DB: db, Subscriber: subscriber, Effect: consumer.Apply(count), Past: registrar,
		Publisher: broker.NewPublisher(conn, broker.PublisherConfig{}), Log: log,
	})
	if err != nil {
		return nil, err
	}
	// It forgets orders that have long been at rest; until then it recognises their events.
	cleaner, err := retention.New(retention.Config{}, retention.Deps{DB: db, Log: log}, k.Retention(s.Keeping(0, registrar.Horizon, conn))...)
	if err != nil {
		return nil, err
	}
	return &Service{k, registrar, cleaner}, nil
}

// Run works until ctx ends, then drains.
func (s *Service) Run(ctx context.Context) error {
	registering, stop := context.WithCancel(ctx)
	var helper sync.WaitGroup
	helper.Go(func() { s.registrar.Run(registering) })
	helper.Go(func() { s.cleaner.Run(registering) })
	err := s.consumer.Run(ctx)
	stop()
	helper.Wait()
	return err
}

// Complete reports whether it works, and all that was wanted of the past has been counted.
func (s *Service) Complete() bool {
	return s.consumer.Status().Paused == "" && s.registrar.Complete()
}

// count writes what each order takes now, in the transaction that advances the order's lane.
func count(ctx context.Context, tx *database.Tx, due []consumer.Event) error {
	for _, e := range due {
		if !e.OfOrder() {
			continue
		}
		order, err := e.Order()
		if err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `DELETE FROM taken WHERE order_id = $1`, order.ID); err != nil {
			return fmt.Errorf("forget what was taken: %w", err)
		}
		if order.Status == "cancelled" {
			order.Items = nil
		}
		for _, item := range order.Items {
			if _, err := tx.ExecContext(ctx, `INSERT INTO taken (order_id, sku, quantity) VALUES ($1, $2, $3)
				ON CONFLICT (order_id, sku) DO UPDATE SET quantity = taken.quantity + excluded.quantity`,
				order.ID, item.SKU, item.Quantity); err != nil {
				return fmt.Errorf("write what is taken: %w", err)
			}
		}
		if _, err := tx.ExecContext(ctx, `INSERT INTO counted (event_id, order_id, version) VALUES ($1, $2, $3)`,
			e.ID, order.ID, order.Version); err != nil {
			return fmt.Errorf("write event: %w", err)
		}
	}
	return nil
}
