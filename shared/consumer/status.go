package consumer

import (
	"context"
	"fmt"
	"time"

	"github.com/pillarbox/pillarbox/shared/database"
)

// Status is what readiness and operators want to know of a consumer.
type Status struct {
	Paused string    // why nothing is consumed now; empty when it is
	Since  time.Time // of the pause
	// StandsBy: mode single, and another replica leads. That is no reason not to be ready.
	StandsBy bool
	// What the last sweep saw (about a second old).
	Waiting, Parked, Dead                   int           // rows by state
	OldestWaiting, OldestParked, OldestDead time.Duration // age of the oldest of each; 0 when there is none
	GapOrders                               int           // orders whose next event is lost
}

// Note is what an operator should know of a consumer that is ready, or "".
func (s Status) Note() string {
	if s.StandsBy {
		return "stands by: another replica consumes"
	}
	return ""
}

// Status returns the state of this replica, without asking the database.
func (c *Consumer) Status() Status {
	seen := c.parked.Load()
	s := Status{
		Waiting: seen.rows[stateWaiting], Parked: seen.rows[stateParked], Dead: seen.rows[stateDead],
		OldestWaiting: seen.oldest[stateWaiting], OldestParked: seen.oldest[stateParked], OldestDead: seen.oldest[stateDead],
		GapOrders: c.orphans.lost(), StandsBy: c.seat.standsBy(),
	}
	if now := c.pause.current.Load(); now != nil {
		s.Paused, s.Since = now.cause.Error(), now.since
	} else if !c.begun.Load() {
		s.Paused = "not started"
	}
	return s
}

// snapshot is what a sweep saw in parked, by state.
type snapshot struct {
	rows   map[string]int
	oldest map[string]time.Duration
}

func look(ctx context.Context, q database.Querier, now string) (snapshot, error) {
	s := snapshot{map[string]int{}, map[string]time.Duration{}}
	rows, err := q.QueryContext(ctx, `SELECT state, count(*), min(created_at), `+now+` FROM parked GROUP BY state`)
	if err != nil {
		return s, fmt.Errorf("count parked: %w", err)
	}
	err = each(rows, func() error {
		var state string
		var n int
		var oldest, clock int64
		if err := rows.Scan(&state, &n, &oldest, &clock); err != nil {
			return err
		}
		s.rows[state] = n
		s.oldest[state] = max(0, time.Duration(clock-oldest)*time.Microsecond)
		return nil
	})
	if err != nil {
		return s, fmt.Errorf("count parked: %w", err)
	}
	return s, nil
}

func (s snapshot) total() (n int64) {
	for _, rows := range s.rows {
		n += int64(rows)
	}
	return n
}
