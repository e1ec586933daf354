package retention

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/lease"
	"github.com/pillarbox/pillarbox/shared/logs"
	"github.com/pillarbox/pillarbox/shared/wait"
)

const (
	biteTimeout = 5 * time.Second
	// A bite is followed by a pause of so many times its length: cleaning takes a fifth of a writer at most.
	pauseFactor = 4
)

// lead runs rounds until ctx ends or a bite is refused.
func (c *Cleaner) lead(ctx context.Context, term int64) error {
	defer c.metrics.resign()
	tick := time.NewTicker(c.c.Every)
	defer tick.Stop()
	for {
		if err := c.round(ctx, term); errors.Is(err, ErrElsewhere) {
			return nil
		} else if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// job is a rule that has something to do in a round.
type job struct {
	Rule
	before  time.Time
	removed int64
}

// round takes one bite for each rule in turn until none has anything left or the time is up. Errors are the loss
// of the lease and that another replica is to clean.
func (c *Cleaner) round(ctx context.Context, term int64) error {
	begun := time.Now()
	jobs, err := c.jobs(ctx)
	if errors.Is(err, ErrElsewhere) {
		return err
	}
	if err != nil {
		c.fail(ctx, "", err)
		return nil
	}
	all := jobs
	for len(jobs) > 0 && time.Since(begun) < c.c.Budget {
		var more []*job
		for _, j := range jobs {
			n, err := c.bite(ctx, term, j)
			switch {
			case ctx.Err() != nil:
				return ctx.Err()
			case errors.Is(err, lease.ErrLost):
				c.metrics.conflicts.Inc()
				c.log.WarnContext(ctx, "bite refused: another replica cleans", logs.Term, term, "rule", j.Name)
				return err
			case err != nil:
				c.fail(ctx, j.Name, err) // perhaps a lock: the next round comes soon
			case n == int64(c.c.Bite):
				more = append(more, j)
			}
		}
		jobs = more
	}
	c.report(ctx, all, len(jobs) > 0, time.Since(begun))
	c.look(ctx)
	return nil
}

// jobs says what each rule may remove now.
func (c *Cleaner) jobs(ctx context.Context) ([]*job, error) {
	now, err := c.db.Now(ctx)
	if err != nil {
		return nil, err
	}
	var jobs []*job
	for _, r := range c.rules {
		upTo := now
		if r.UpTo != nil {
			upTo, err = r.UpTo(ctx, now)
			if errors.Is(err, ErrElsewhere) {
				return nil, err
			}
			c.hold(ctx, r.Name, err)
			if err != nil {
				continue
			}
		}
		if upTo.After(now) {
			upTo = now
		}
		jobs = append(jobs, &job{Rule: r, before: upTo.Add(-r.Keep)})
	}
	return jobs, nil
}

// bite is one transaction and the pause after it.
func (c *Cleaner) bite(ctx context.Context, term int64, j *job) (n int64, err error) {
	begun := time.Now()
	limited, cancel := context.WithTimeout(ctx, biteTimeout)
	defer cancel()
	err = c.db.Tx(limited, func(ctx context.Context, tx *database.Tx) (err error) {
		if err := lease.Check(ctx, tx, LeaseName, term); err != nil {
			return err
		}
		n, err = j.Bite(ctx, tx, j.before, c.c.Bite)
		return err
	})
	if err != nil {
		return 0, err
	}
	j.removed += n
	c.metrics.removed.WithLabelValues(j.Name).Add(float64(n))
	if n > 0 {
		wait.For(ctx, max(c.c.Pause, pauseFactor*time.Since(begun)))
	}
	return n, nil
}

// hold notes why a rule stands, with a line when the reason changes.
func (c *Cleaner) hold(ctx context.Context, rule string, err error) {
	if ctx.Err() != nil {
		return
	}
	why, waits := "", 0.0
	if err != nil {
		why, waits = err.Error(), 1
	}
	c.metrics.held.WithLabelValues(rule).Set(waits)
	if c.held[rule] == why {
		return
	}
	c.held[rule] = why
	switch {
	case err == nil:
		c.log.InfoContext(ctx, "old rows can be removed again", "rule", rule)
	case errors.Is(err, ErrNotNow):
		c.log.InfoContext(ctx, "old rows stay for now", "rule", rule, logs.Reason, why)
	default:
		c.log.WarnContext(ctx, "old rows stay", "rule", rule, logs.Error, err)
	}
}

func (c *Cleaner) fail(ctx context.Context, rule string, err error) {
	if ctx.Err() != nil {
		return
	}
	c.metrics.errors.Inc()
	c.log.WarnContext(ctx, "old rows stay until the next round", "rule", rule, logs.Error, err)
}

// report writes one line about a round that removed something.
func (c *Cleaner) report(ctx context.Context, jobs []*job, more bool, took time.Duration) {
	var parts []string
	for _, j := range jobs {
		if j.removed > 0 {
			parts = append(parts, fmt.Sprintf("%s=%d", j.Name, j.removed))
		}
	}
	if len(parts) > 0 {
		c.log.InfoContext(ctx, "old rows removed", "rows", strings.Join(parts, " "), "more", more, "took", took.Round(time.Millisecond))
	}
}

// look reads how old the oldest row of each rule is.
func (c *Cleaner) look(ctx context.Context) {
	for _, r := range c.rules {
		if r.Oldest == "" {
			continue
		}
		limited, cancel := context.WithTimeout(ctx, biteTimeout)
		var age int64
		err := c.db.Read().QueryRowContext(limited, `SELECT coalesce(`+c.db.Dialect().Now()+` - (`+r.Oldest+`), 0)`).Scan(&age)
		cancel()
		if err != nil {
			c.fail(ctx, r.Name, fmt.Errorf("look at the oldest: %w", err))
			return
		}
		c.metrics.oldest.WithLabelValues(r.Name).Set(max(0, (time.Duration(age) * time.Microsecond).Seconds()))
	}
}
