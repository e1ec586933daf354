// Package lease elects one leader among the replicas of a service by a row in
// the service's own database, with a term that rises at every change of leader
// and is checked on the leader's writes.
package lease

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/pillarbox/pillarbox/shared/database"
)

// ErrLost means that another holder has a higher term: the write must not happen.
var ErrLost = errors.New("lease lost")

// Config of a Lease.
type Config struct {
	Name   string        // which leadership, e.g. "relay"
	Holder string        // who we are; unique per process
	TTL    time.Duration // how long a silent leader keeps it. Default 5 s
}

// Lease is one replica's part in the election.
type Lease struct{}

// New checks c; it does no I/O.
func New(c Config, db *database.DB, log *slog.Logger) (*Lease, error) { panic("skeleton") }

// Run competes for the lease until ctx ends. While it leads it calls lead with
// a context that is cancelled (cause ErrLost) when the lease cannot be renewed in
// time, and the term. When lead returns, the lease is given back at once and, unless
// ctx has ended, competed for again.
func (l *Lease) Run(ctx context.Context, lead func(ctx context.Context, term int64) error) error {
	panic("skeleton")
}

// Check fails with ErrLost unless term is the current one of name; within tx it
// holds the row so that no other leader can begin before the commit.
func Check(ctx context.Context, tx *database.Tx, name string, term int64) error { panic("skeleton") }
