// Package outbox keeps a transaction's events in the same database until the
// broker has confirmed them, and publishes them in order: Append and the Relay.
package outbox

import (
	"context"
	"log/slog"
	"time"

	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/events"
	"github.com/prometheus/client_golang/prometheus"
)

// Row is an event to append: its envelope and its encoded bytes.
type Row struct {
	Event   events.Event
	Payload []byte
}

// Append writes the rows to events and outbox in the caller's transaction, in the given order. The caller holds
// the locks of the orders concerned.
func Append(ctx context.Context, tx *database.Tx, rows []Row) error { panic("skeleton") }

// Config of the relay; zero values mean the defaults.
type Config struct {
	Stream   string        // default events.StreamOrders
	Topic    string        // default events.TopicOrders
	Holder   string        // lease holder name, unique per process
	LeaseTTL time.Duration // default 5 s
	Poll     time.Duration // default 500 ms
	Horizon  time.Duration // how far back history can be refilled and is kept in the stream; default 72 h
	MaxBytes int64         // of the stream; default 1 GiB
	Replicas int           // of the stream; default 1
}

// Relay publishes the outbox. One replica leads.
type Relay struct{}

// NewRelay checks its arguments; it does no I/O.
func NewRelay(c Config, db *database.DB, conn *broker.Conn, log *slog.Logger, reg prometheus.Registerer) (*Relay, error) {
	panic("skeleton")
}

// Run relays until ctx ends, finishes what it has under way and hands the lease over.
func (r *Relay) Run(ctx context.Context) error { panic("skeleton") }

// Wake says that rows were committed. It never blocks; it also hints the leading replica over the broker.
func (r *Relay) Wake() { panic("skeleton") }

// Status is the backlog as the database shows it.
type Status struct {
	Waiting   int64         // rows not yet confirmed
	OldestAge time.Duration // of the oldest waiting row
	Dead      int64         // rows the broker refuses for ever
}

// ReadStatus reads the backlog.
func ReadStatus(ctx context.Context, db *database.DB) (Status, error) { panic("skeleton") }
