package delivery

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/pillarbox/pillarbox/services/mailer/internal/ledger"
	"github.com/pillarbox/pillarbox/services/mailer/internal/pickup"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/logs"
)

// SweepConfig of NewSweeper; zero values mean the defaults.
type SweepConfig struct {
	Every  time.Duration // between two looks at overdue rows. Default 5 s
	Grace  time.Duration // a row younger than this is still its owner's to publish. Default 5 s
	Clean  time.Duration // between two looks at the staging folder. Default 1 min
	Keep   time.Duration // age from which a file is removed whose row names another. Default 10 min
	Orphan time.Duration // age from which a file without a row is removed. Default 1 h, at least 10 min
	Now    func() time.Time
}

// Sweeper finishes what crashes left. Every replica runs one: all its steps
// may happen twice or at the same time.
type Sweeper struct {
	SweepConfig
	folder  *Folder
	db      *database.DB
	metrics *Metrics
	log     *slog.Logger

	// seen is when this process first met each file without a row. Such a file is
	// removed only after having been seen for Keep, so that a clock that jumps
	// cannot make a file of this second look an hour old. One goroutine uses it.
	seen    map[string]time.Time
	failing bool
}

const (
	sweepBite = 500
	maxSeen   = 10_000
)

// NewSweeper does no I/O.
func NewSweeper(c SweepConfig, f *Folder, db *database.DB, m *Metrics, log *slog.Logger) *Sweeper {
	c.Every = cmp.Or(c.Every, 5*time.Second)
	c.Grace = cmp.Or(c.Grace, 5*time.Second)
	c.Clean = cmp.Or(c.Clean, time.Minute)
	c.Keep = cmp.Or(c.Keep, 10*time.Minute)
	c.Orphan = cmp.Or(c.Orphan, time.Hour)
	// A transaction that still may commit the name lives for seconds and begins within freshFor.
	c.Orphan = max(c.Orphan, 10*freshFor)
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Sweeper{SweepConfig: c, folder: f, db: db, metrics: m, log: log, seen: map[string]time.Time{}}
}

// Run sweeps until ctx ends.
func (s *Sweeper) Run(ctx context.Context) {
	tick := time.NewTicker(s.Every)
	defer tick.Stop()
	var cleaned time.Time
	for {
		err := s.Finish(ctx)
		if now := time.Now(); err == nil && now.Sub(cleaned) >= s.Clean {
			cleaned, err = now, s.Tidy(ctx)
		}
		s.report(ctx, err)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// report logs a failure once until a round succeeds again.
func (s *Sweeper) report(ctx context.Context, err error) {
	if err != nil && !s.failing && ctx.Err() == nil {
		s.log.WarnContext(ctx, "sweep of the pickup folder goes on later", logs.Error, err)
	}
	s.failing = err != nil
}

// Finish publishes the files of rows whose owner did not come to it and marks
// the rows.
func (s *Sweeper) Finish(ctx context.Context) error {
	for ctx.Err() == nil {
		upTo, err := ledger.Overdue(ctx, s.db, s.Grace, sweepBite)
		if err != nil {
			return err
		}
		if len(upTo) == 0 {
			break
		}
		staged, err := ledger.Staged(ctx, s.db.Read(), upTo)
		if err != nil {
			return err
		}
		if err := s.publish(ctx, staged); err != nil {
			return err
		}
	}
	count, oldest, err := ledger.Backlog(ctx, s.db)
	if err != nil {
		return err
	}
	s.metrics.staged.Set(float64(count))
	s.metrics.oldest.Set(oldest.Seconds())
	return ctx.Err()
}

func (s *Sweeper) publish(ctx context.Context, deliveries []ledger.Delivery) error {
	box, err := s.folder.Box(ctx)
	if err != nil {
		return err
	}
	outcome, err := box.Publish(items(deliveries), nil)
	if err != nil {
		return err
	}
	s.metrics.count(ctx, s.log, outcome)
	if outcome.Moved+outcome.Renamed > 0 {
		s.log.InfoContext(ctx, "published mails that were left staged", logs.Count, outcome.Moved+outcome.Renamed)
	}
	if err := ledger.Accept(ctx, s.db, without(ids(deliveries), outcome.Missing)); err != nil {
		return err
	}
	if n := len(outcome.Missing); n > 0 {
		s.log.WarnContext(ctx, "mails count as published although nobody has seen them: their staged files are gone",
			logs.Count, n, "first", outcome.Missing[0])
	}
	return ledger.Assume(ctx, s.db, outcome.Missing)
}

// Tidy looks through the staging folder for files older than Keep: those that
// their row names are published, those whose row names another, and those that
// have had no row for long, are removed.
func (s *Sweeper) Tidy(ctx context.Context) error {
	box, err := s.folder.Box(ctx)
	if err != nil {
		return err
	}
	now, still := s.Now(), make(map[string]time.Time)
	err = box.Leftovers(now.Add(-s.Keep), sweepBite, func(found []pickup.Leftover) (bool, error) {
		return true, s.tidy(ctx, box, now, found, still)
	})
	s.seen = still
	return err
}

func (s *Sweeper) tidy(ctx context.Context, box *pickup.Box, now time.Time, found []pickup.Leftover, still map[string]time.Time) error {
	var named []ledger.Delivery
	// A write transaction although it only reads: where one process writes at a
	// time, a group that is about to commit one of these names is waited for.
	err := s.db.Tx(ctx, func(ctx context.Context, tx *database.Tx) error {
		named = nil
		wanted := make([]string, 0, len(found))
		for _, l := range found {
			wanted = append(wanted, l.Delivery)
		}
		rows, err := ledger.Find(ctx, tx, wanted)
		if err != nil {
			return err
		}
		var remove []string
		for _, l := range found {
			row, ok := rows[l.Delivery]
			switch {
			case l.Delivery == "":
				// Not a name that we give to mails: not ours to judge.
			case ok && row.StagedName == l.Name:
				named = append(named, row)
			case ok, s.orphaned(l, now, still):
				remove = append(remove, l.Name)
			}
		}
		s.metrics.removed.Add(float64(len(remove)))
		return box.Discard(remove)
	})
	if err != nil || len(named) == 0 {
		return err
	}
	return s.publishNamed(ctx, named)
}

// publishNamed publishes files that lie staged though they are old and named:
// rows still staged, or a rename that a power loss undid after it was marked.
// What is staged of lower versions goes first.
func (s *Sweeper) publishNamed(ctx context.Context, named []ledger.Delivery) error {
	upTo := make(map[string]int64)
	for _, d := range named {
		upTo[d.OrderID] = max(upTo[d.OrderID], d.Version)
	}
	staged, err := ledger.Staged(ctx, s.db.Read(), upTo)
	if err != nil {
		return err
	}
	all := append(staged, named...)
	ledger.Sort(all)
	all = slices.CompactFunc(all, func(a, b ledger.Delivery) bool { return a.ID == b.ID })
	return s.publish(ctx, all)
}

// orphaned reports whether a file without a row is old enough to be removed.
func (s *Sweeper) orphaned(l pickup.Leftover, now time.Time, still map[string]time.Time) bool {
	first, ok := s.seen[l.Name]
	if !ok {
		first = now
	}
	if now.Sub(first) >= s.Keep && now.Sub(l.Modified) >= s.Orphan {
		return true
	}
	if len(still) < maxSeen {
		still[l.Name] = first
	}
	return false
}
