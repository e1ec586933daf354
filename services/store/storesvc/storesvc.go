// Package storesvc is all that the world may see of the store service.
package storesvc

import (
	"context"
	"log/slog"
	"net/http"

	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/prometheus/client_golang/prometheus"
)

// Name is the service's name: its schema, consumer group and metric prefix.
const Name = "store"

// Config of the service. Every field has a default; Validate lists all problems.
type Config struct {
}

// Validate reports every setting that is out of range.
func (c Config) Validate() error { return nil }

// Deps are what the service borrows; it closes none of them.
type Deps struct {
	DB       *database.DB
	Broker   *broker.Conn
	Log      *slog.Logger
	Registry prometheus.Registerer
}

// Service is one replica.
type Service struct{}

// New checks c and d; it does no I/O and starts nothing.
func New(c Config, d Deps) (*Service, error) { panic("skeleton") }

// Handler is the service's HTTP API, or nil when it has none.
func (s *Service) Handler() http.Handler { panic("skeleton") }

// Run works until ctx ends, then drains. It returns after its last goroutine.
func (s *Service) Run(ctx context.Context) error { panic("skeleton") }

// Ready reports why the service cannot do its work now, or nil.
func (s *Service) Ready(ctx context.Context) error { panic("skeleton") }
