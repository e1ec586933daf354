// Package retention removes old rows of a service in small bites: one replica at a time, the leader of a
// lease, runs a list of rules once a minute.
//
// It promises that a bite is one short transaction with a bounded number of rows, which reads the leader's
// term first: what a leader of the past still wants to remove is refused. It passes over rows that
// live work has locked, pauses after each bite for several times as long as the bite took, and ends a round when its
// time is up, so that live work never waits long. It does not promise when a row goes, only that none goes before its time.
//
// A crash leaves whole bites behind. The next leader begins when the lease has run out; there is no hurry.
package retention

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/lease"
	"github.com/prometheus/client_golang/prometheus"
)

// LeaseName is the leadership that a cleaner needs.
const LeaseName = "retention"

// MaxBite is the most rows of one transaction.
const MaxBite = 500

// ErrNotNow means that a rule cannot remove anything at the moment, for the reason that the error tells.
var ErrNotNow = errors.New("nothing is removed")

// ErrElsewhere means that another replica is to clean, since this one cannot know enough: it gives the lease back.
var ErrElsewhere = errors.New("another replica is to clean")

// Bite removes at most limit rows of before a time and returns how many. Fewer than limit means that there are no
// more for now.
type Bite func(ctx context.Context, tx *database.Tx, before time.Time, limit int) (int64, error)

// Rule says what goes when.
type Rule struct {
	Name string        // in metrics and log lines
	Keep time.Duration // how old a row becomes at least
	Bite Bite
	// UpTo returns the time from which Keep counts back, not after now (the database's clock); nil: now. An error
	// holds the rule for this round.
	UpTo func(ctx context.Context, now time.Time) (time.Time, error)
	// Oldest is a query for one number, the time of the oldest row that the rule is about or NULL; empty: unknown.
	Oldest string
}

// Rows is the bite of a table whose rows only have to be old: key is its key (columns separated by commas), age the
// column of a row's time, which needs an index, and condition says which rows are meant besides ("": all).
func Rows(table, key, age, condition string) Bite {
	if condition != "" {
		condition = " AND " + condition
	}
	return func(ctx context.Context, tx *database.Tx, before time.Time, limit int) (int64, error) {
		// Materialized: a plan that ran the inner query once per row would pass over the limit.
		result, err := tx.ExecContext(ctx, `WITH old AS MATERIALIZED (
				SELECT `+key+` FROM `+table+` WHERE `+age+` < $1`+condition+`
				ORDER BY `+age+` LIMIT $2`+tx.Dialect().SkipLocked()+`)
			DELETE FROM `+table+` WHERE (`+key+`) IN (SELECT `+key+` FROM old)`, database.Micros(before), limit)
		if err != nil {
			return 0, fmt.Errorf("delete from %s: %w", table, err)
		}
		return result.RowsAffected()
	}
}

// Config of a Cleaner; zero values mean the defaults.
type Config struct {
	Every  time.Duration // from the beginning of one round to the next. Default 1 min
	Budget time.Duration // of one round. Default 10 s
	Bite   int           // most rows of a transaction. Default and most MaxBite
	Pause  time.Duration // at least, after each bite. Default 10 ms
	Lease  time.Duration // how long a silent leader keeps its place. Default 1 min
	Poll   time.Duration // how often the others look. Default 15 s
}

func (c Config) withDefaults() Config {
	c.Every = cmp.Or(c.Every, time.Minute)
	c.Budget = cmp.Or(c.Budget, 10*time.Second)
	c.Pause = cmp.Or(c.Pause, 10*time.Millisecond)
	c.Lease = cmp.Or(c.Lease, time.Minute)
	c.Poll = cmp.Or(c.Poll, 15*time.Second)
	if c.Bite == 0 {
		c.Bite = MaxBite
	}
	return c
}

// Deps of a Cleaner.
type Deps struct {
	DB       *database.DB
	Log      *slog.Logger
	Registry prometheus.Registerer // nil: the metrics are kept and not shown
}

// Cleaner is one replica's part.
type Cleaner struct {
	c       Config
	rules   []Rule
	db      *database.DB
	log     *slog.Logger
	lease   *lease.Lease
	metrics metrics
	held    map[string]string // why a rule stands, as logged; only the leader's goroutine uses it
}

// New checks its arguments; it does no I/O.
func New(c Config, d Deps, rules ...Rule) (*Cleaner, error) {
	if d.DB == nil || d.Log == nil {
		return nil, errors.New("retention: database and log are required")
	}
	c = c.withDefaults()
	if c.Bite < 1 || c.Bite > MaxBite || c.Every < 0 || c.Budget < 0 || c.Pause < 0 {
		return nil, fmt.Errorf("retention: a bite must be 1 to %d rows, and times must not be negative", MaxBite)
	}
	names := map[string]bool{}
	for _, r := range rules {
		if r.Name == "" || names[r.Name] || r.Bite == nil || r.Keep <= 0 {
			return nil, fmt.Errorf("retention: rule %q needs a name of its own, a bite and a time to keep", r.Name)
		}
		names[r.Name] = true
	}
	l, err := lease.New(lease.Config{Name: LeaseName, Holder: lease.HolderName(), TTL: c.Lease, Poll: c.Poll}, d.DB, d.Log)
	if err != nil {
		return nil, fmt.Errorf("retention: %w", err)
	}
	m, err := newMetrics(d.Registry, rules, l)
	if err != nil {
		return nil, fmt.Errorf("retention: register metrics: %w", err)
	}
	return &Cleaner{c: c, rules: rules, db: d.DB, log: d.Log, lease: l, metrics: m, held: map[string]string{}}, nil
}

// Run cleans until ctx ends, whenever this replica leads. It returns after its last goroutine.
func (c *Cleaner) Run(ctx context.Context) {
	// It returns at the end of ctx only, and then nil: without hints there is nothing that could fail.
	_ = c.lease.Run(ctx, c.lead)
}
