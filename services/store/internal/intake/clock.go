package intake

import (
	"context"
	"sync"
	"time"

	"github.com/pillarbox/pillarbox/shared/database"
)

// askEvery is how long the clock goes by itself.
const askEvery = 10 * time.Second

// clock is the database's, asked now and then and carried on in between by this process's monotonic
// clock, so that a step of the local time does not matter. It is behind by at most
// the time that the answer took.
type clock struct {
	db *database.DB

	mu    sync.Mutex // guards all below
	read  time.Time  // what the database said
	local time.Time  // when
}

func (c *clock) now(ctx context.Context) (time.Time, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.local.IsZero() || time.Since(c.local) > askEvery {
		read, err := c.db.Now(ctx)
		if err != nil {
			return time.Time{}, err
		}
		c.read, c.local = read, time.Now()
	}
	return c.read.Add(time.Since(c.local)).Truncate(time.Microsecond), nil
}
