package retention_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
	"github.com/pillarbox/pillarbox/shared/logs"
	"github.com/pillarbox/pillarbox/shared/retention"
	"github.com/stretchr/testify/require"
)

func TestOldRowsGoInBitesAndYoungOnesStay(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "audit", func(t *testing.T, db *database.DB) {
		fill(t, db, 230, 3*day)
		fill(t, db, 7, day)
		most := atomic.Int64{}
		rule := actions(2 * day)
		bite := rule.Bite
		rule.Bite = func(ctx context.Context, tx *database.Tx, before time.Time, limit int) (int64, error) {
			n, err := bite(ctx, tx, before, limit)
			most.Store(max(most.Load(), n))
			return n, err
		}
		r := start(t, db, retention.Config{Bite: 50}, rule)
		eventually(t, func() bool { return r.metric(t, "retention_removed_total", "actions") == 230 }, "removed")
		eventually(t, func() bool { return r.log.count("actions=230") == 1 }, "one line for the round")
		require.Equal(t, 7, count(t, db, left))
		require.EqualValues(t, 50, most.Load())
		eventually(t, func() bool {
			oldest := r.metric(t, "retention_oldest_seconds", "actions")
			return oldest >= day.Seconds() && oldest < 2*day.Seconds()
		}, "age of the oldest")
		fill(t, db, 1, 3*day)
		eventually(t, func() bool {
			return count(t, db, left) == 7 && r.log.count("rows=actions=1 ")+r.log.count(`rows="actions=1"`) == 1
		}, "later ones go too")
		require.Equal(t, 2, r.log.count("old rows removed"), "rounds that removed nothing are silent")
	})
}

func TestTwoReplicasCleanAtOnce(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "audit", func(t *testing.T, db *database.DB) {
		fill(t, db, 300, 3*day)
		fill(t, db, 5, day)
		// A lease that is given back again and again: both get their turns.
		var turns atomic.Int64
		rule := actions(2 * day)
		rule.UpTo = func(_ context.Context, now time.Time) (time.Time, error) {
			if turns.Add(1)%2 == 0 {
				return now, retention.ErrElsewhere
			}
			return now, nil
		}
		c := retention.Config{Bite: 3, Budget: 20 * time.Millisecond}
		one, two := start(t, db, c, rule), start(t, db, c, rule)
		eventually(t, func() bool { return count(t, db, left) == 5 }, "cleaned")
		one.stop()
		two.stop()
		removed := one.metric(t, "retention_removed_total", "actions") + two.metric(t, "retention_removed_total", "actions")
		require.EqualValues(t, 300, removed, "each row by one of them")
	})
}

// TestFrozenLeadersBiteIsRefused: it is frozen before a bite for so long that another leads.
func TestFrozenLeadersBiteIsRefused(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "audit", func(t *testing.T, db *database.DB) {
		fill(t, db, 10, 3*day)
		frozen, thaw := make(chan struct{}), make(chan struct{})
		var once atomic.Bool
		rule := actions(2 * day)
		rule.UpTo = func(_ context.Context, now time.Time) (time.Time, error) {
			if once.CompareAndSwap(false, true) {
				close(frozen)
				<-thaw
			}
			return now, nil
		}
		old := start(t, db, retention.Config{Lease: time.Hour, Poll: time.Hour}, rule)
		<-frozen
		exec(t, db, `UPDATE leases SET term = term + 1, holder = 'another', expires_at = $1 WHERE name = $2`,
			database.Micros(time.Now().Add(time.Hour)), retention.LeaseName)
		close(thaw)
		eventually(t, func() bool { return old.metric(t, "retention_conflicts_total", "") == 1 }, "refused")
		require.Equal(t, 10, count(t, db, left))
		eventually(t, func() bool { return old.log.count("bite refused") == 1 }, "said")
	})
}

func TestARuleThatCannotGoOnHoldsNoOther(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "audit", func(t *testing.T, db *database.DB) {
		fill(t, db, 20, 3*day)
		var open, whole atomic.Bool
		held := retention.Rule{Name: "held", Keep: day, Bite: retention.Rows("operator_actions", "id", "at", "target = '0'"),
			UpTo: func(_ context.Context, now time.Time) (time.Time, error) {
				if !open.Load() {
					return now, retention.ErrNotNow
				}
				return now, nil
			}}
		broken := retention.Rule{Name: "broken", Keep: day, Bite: func(ctx context.Context, tx *database.Tx, before time.Time, limit int) (int64, error) {
			if !whole.Load() {
				return 0, errors.New("out of order")
			}
			return retention.Rows("operator_actions", "id", "at", "target = '1'")(ctx, tx, before, limit)
		}}
		good := retention.Rule{Name: "good", Keep: day, Bite: retention.Rows("operator_actions", "id", "at", "target NOT IN ('0', '1')")}
		r := start(t, db, retention.Config{Bite: 4}, held, broken, good)
		eventually(t, func() bool { return count(t, db, left) == 2 }, "the good one")
		eventually(t, func() bool { return r.metric(t, "retention_errors_total", "") > 0 }, "counted")
		require.EqualValues(t, 1, r.metric(t, "retention_held", "held"))
		require.Equal(t, 1, r.log.count("old rows stay for now"), "said once")
		open.Store(true)
		whole.Store(true)
		eventually(t, func() bool { return count(t, db, left) == 0 }, "all of them")
		eventually(t, func() bool { return r.metric(t, "retention_held", "held") == 0 }, "goes on")
	})
}

// TestARoundEndsWithItsBudget: a rule that always finds more leaves the others their turns, and the rest to later rounds.
func TestARoundEndsWithItsBudget(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "audit", func(t *testing.T, db *database.DB) {
		fill(t, db, 6, 3*day)
		endless := retention.Rule{Name: "endless", Keep: day,
			Bite: func(_ context.Context, _ *database.Tx, _ time.Time, limit int) (int64, error) {
				return int64(limit), nil
			}}
		r := start(t, db, retention.Config{Bite: 1, Budget: 30 * time.Millisecond}, endless, actions(day))
		eventually(t, func() bool { return count(t, db, left) == 0 }, "the other's turns")
		eventually(t, func() bool { return r.log.count("more=true") >= 2 }, "rounds end")
	})
}

// TestRowsThatWorkHoldsArePassedOver needs row locks.
func TestRowsThatWorkHoldsArePassedOver(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "audit", func(t *testing.T, db *database.DB) {
		if !db.Dialect().Postgres() {
			t.Skip("one writer at a time")
		}
		fill(t, db, 10, 3*day)
		require.NoError(t, db.Tx(t.Context(), func(ctx context.Context, tx *database.Tx) error {
			if _, err := tx.ExecContext(ctx, `SELECT 1 FROM operator_actions WHERE target = '3' FOR UPDATE`); err != nil {
				return err
			}
			r := start(t, db, retention.Config{}, actions(day))
			eventually(t, func() bool { return count(t, db, left) == 1 }, "all others")
			require.Zero(t, r.metric(t, "retention_errors_total", ""))
			return nil
		}))
		eventually(t, func() bool { return count(t, db, left) == 0 }, "the last one")
	})
}

func TestNewChecksItsArguments(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "audit", func(t *testing.T, db *database.DB) {
		d := retention.Deps{DB: db, Log: logs.Discard()}
		for what, c := range map[string]struct {
			config retention.Config
			rules  []retention.Rule
		}{
			"a bite too large": {retention.Config{Bite: retention.MaxBite + 1}, nil},
			"twice the name":   {retention.Config{}, []retention.Rule{actions(day), actions(day)}},
			"nothing is kept":  {retention.Config{}, []retention.Rule{actions(0)}},
		} {
			_, err := retention.New(c.config, d, c.rules...)
			require.Error(t, err, what)
		}
		_, err := retention.New(retention.Config{}, retention.Deps{}, actions(day))
		require.Error(t, err)
	})
}
