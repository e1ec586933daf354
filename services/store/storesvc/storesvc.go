// Package storesvc is all that the world may see of the order store: it takes orders over HTTP
// (see httpapi), stores each with its event in one transaction (see intake), and relays the
// events to the broker (see outbox). Replicas share the requests; one of them relays.
//
// A replica that dies has stored every order that it answered 201 for, and their events are relayed by
// another. Its clients may not have got their answers; repeating with the idempotency key gives
// them. With the setting intake=async orders are answered 202 first, and such a replica loses those that it
// had not stored yet: at most twice the flush count.
package storesvc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/pillarbox/pillarbox/services/store/internal/httpapi"
	"github.com/pillarbox/pillarbox/services/store/internal/intake"
	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/lease"
	"github.com/pillarbox/pillarbox/shared/outbox"
	"github.com/pillarbox/pillarbox/shared/retention"
)

// Name is the service's name: its schema, consumer group and metric prefix.
const Name = "store"

// Deps are what the service borrows; it closes none of them.
type Deps struct {
	DB       *database.DB
	Broker   *broker.Conn
	Log      *slog.Logger
	Registry prometheus.Registerer // nil: the metrics are kept and not shown
}

// Service is one replica.
type Service struct {
	db      *database.DB
	intake  *intake.Intake
	log     *slog.Logger
	config  Config
	relay   *outbox.Relay
	backlog *backlog
	cleaner *retention.Cleaner
	handler http.Handler
}

// New checks c and d; it does no I/O and starts nothing.
func New(c Config, d Deps) (*Service, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if d.DB == nil || d.Broker == nil || d.Log == nil {
		return nil, errors.New("store: database, broker and log are required")
	}
	if d.Registry == nil {
		d.Registry = prometheus.NewRegistry()
	}
	c = c.withDefaults()
	relay, err := outbox.NewRelay(c.relay(lease.HolderName()), d.DB, d.Broker, d.Log, d.Registry)
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	s := &Service{
		db: d.DB, log: d.Log, config: c, relay: relay,
		backlog: &backlog{limit: c.OutboxLimit, maxAge: c.OutboxMaxAge, db: d.DB, log: d.Log, recount: make(chan struct{}, 1)},
	}
	s.cleaner, err = retention.New(retention.Config{}, retention.Deps{DB: d.DB, Log: d.Log, Registry: d.Registry}, rules(c.KeyRetention)...)
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	s.intake, err = intake.New(c.intake(), intake.Deps{
		DB: d.DB, Log: d.Log, Registry: d.Registry,
		Admit: s.backlog.admit, Wake: relay.Wake, Render: httpapi.RenderOrder,
	})
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	s.handler, err = httpapi.New(c.httpapi(), httpapi.Deps{DB: d.DB, Writer: s.intake, Log: d.Log, Registry: d.Registry})
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	return s, nil
}

// Handler is the service's HTTP API. Requests that come before Run wait for it.
func (s *Service) Handler() http.Handler { return s.handler }

// Run works until ctx ends, then drains: it takes no more requests, stores those that wait,
// and then lets the relay finish what it has under way. It returns after its last goroutine. Call it once.
func (s *Service) Run(ctx context.Context) error {
	s.config.logFanout(ctx, s.log)
	g, working := errgroup.WithContext(ctx)
	// The relay outlives the intake, so that the last orders need not wait for another replica.
	relaying, stopRelay := context.WithCancel(context.WithoutCancel(ctx))
	defer stopRelay()
	g.Go(func() error {
		defer stopRelay()
		return s.intake.Run(working)
	})
	g.Go(func() error {
		if err := s.relay.Run(relaying); err != nil {
			return fmt.Errorf("relay: %w", err)
		}
		return nil
	})
	g.Go(func() error { s.backlog.watch(working); return nil })
	g.Go(func() error { s.cleaner.Run(working); return nil })
	return g.Wait()
}

// Ready reports why the service cannot do its work now, or nil.
func (s *Service) Ready(ctx context.Context) error {
	if err := s.db.Ping(ctx); err != nil {
		return fmt.Errorf("database: %w", err)
	}
	if s.intake.Full() {
		return errors.New("intake queue is full")
	}
	return s.backlog.ready()
}
