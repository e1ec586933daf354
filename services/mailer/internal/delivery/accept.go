package delivery

import (
	"context"
	"log/slog"
	"time"

	"github.com/pillarbox/pillarbox/services/mailer/internal/ledger"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/failpoint"
	"github.com/pillarbox/pillarbox/shared/group"
	"github.com/pillarbox/pillarbox/shared/logs"
)

// Accepter marks published deliveries as accepted, later and in groups: the row
// decides every redelivery whatever its state, so nobody waits for the mark.
// What it loses (full queue, database away, crash) Sweeper marks.
type Accepter struct {
	db      *database.DB
	queue   chan string
	metrics *Metrics
	log     *slog.Logger
}

const (
	acceptQueue = 10_000
	acceptGroup = 500
	acceptEvery = 200 * time.Millisecond
	acceptLast  = 3 * time.Second // for the last group at stop
)

// NewAccepter does no I/O.
func NewAccepter(db *database.DB, m *Metrics, log *slog.Logger) *Accepter {
	return &Accepter{db: db, queue: make(chan string, acceptQueue), metrics: m, log: log}
}

// Add never blocks.
func (a *Accepter) Add(ids []string) {
	for i, id := range ids {
		select {
		case a.queue <- id:
		default:
			a.metrics.dropped.Add(float64(len(ids) - i))
			return
		}
	}
}

// Run marks until ctx ends, then what is queued.
func (a *Accepter) Run(ctx context.Context) {
	tick := time.NewTicker(acceptEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), acceptLast)
			defer cancel()
			a.flush(last)
			return
		case <-tick.C:
			a.flush(ctx)
		}
	}
}

// flush marks all that is queued now.
func (a *Accepter) flush(ctx context.Context) {
	for {
		ids := group.Take(nil, a.queue, group.UpTo[string](acceptGroup))
		if len(ids) == 0 {
			return
		}
		if err := ledger.Accept(ctx, a.db, ids); err != nil {
			a.metrics.dropped.Add(float64(len(ids)))
			a.log.WarnContext(ctx, "published deliveries are left to the sweeper", logs.Error, err, logs.Count, len(ids))
			return
		}
		failpoint.Hit("mailer.accepted")
	}
}
