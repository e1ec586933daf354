package storesvc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/pillarbox/pillarbox/services/store/internal/intake"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/logs"
	"github.com/pillarbox/pillarbox/shared/outbox"
)

const (
	backlogEvery   = time.Second
	backlogAtLeast = 20 * time.Millisecond // between two counts that a refusal asked for
	backlogTimeout = 5 * time.Second
)

// backlog knows roughly how many events wait for the broker. Counting them for each request would
// cost more than the request: it counts once a second, and adds what was admitted since. That guess is
// too high as soon as the relay has published some, so a refusal asks for another count at once.
type backlog struct {
	limit    int64
	maxAge   time.Duration
	db       *database.DB
	log      *slog.Logger
	last     atomic.Pointer[outbox.Status]
	since    atomic.Int64  // when the first count was, in nanoseconds
	admitted atomic.Int64  // since last was read
	recount  chan struct{} // capacity 1
}

// admit refuses an event when too many wait. Before the first count it admits.
func (b *backlog) admit() error {
	last := b.last.Load()
	if last == nil {
		return nil
	}
	if b.admitted.Add(1)+last.Waiting+last.Dead > b.limit {
		b.admitted.Add(-1)
		select {
		case b.recount <- struct{}{}:
		default:
		}
		return intake.ErrBacklog
	}
	return nil
}

// ready: an age counts from the first look on, so that a process that starts on an old backlog, because the broker
// was away, has the time of the limit to publish it.
func (b *backlog) ready() error {
	last := b.last.Load()
	switch {
	case last == nil:
		return errors.New("outbox is not read yet")
	case last.Waiting+last.Dead >= b.limit:
		return fmt.Errorf("outbox holds %d events, its limit is %d", last.Waiting+last.Dead, b.limit)
	case last.OldestAge > b.maxAge && time.Since(time.Unix(0, b.since.Load())) > b.maxAge:
		return fmt.Errorf("oldest event waits for %s", last.OldestAge.Round(time.Second))
	}
	return nil
}

// watch counts until ctx ends. While the database is away the last figures stand.
func (b *backlog) watch(ctx context.Context) {
	tick := time.NewTicker(backlogEvery)
	defer tick.Stop()
	failing := false
	for {
		err := b.refresh(ctx)
		if err != nil && !failing && ctx.Err() == nil {
			b.log.WarnContext(ctx, "outbox cannot be counted", logs.Error, err)
		}
		failing = err != nil
		select {
		case <-ctx.Done():
			return
		case <-time.After(backlogAtLeast):
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-b.recount:
		}
	}
}

func (b *backlog) refresh(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, backlogTimeout)
	defer cancel()
	before := b.admitted.Load()
	status, err := outbox.ReadStatus(ctx, b.db)
	if err != nil {
		return err
	}
	b.since.CompareAndSwap(0, time.Now().UnixNano())
	b.last.Store(&status)
	b.admitted.Add(-before) // those are counted now, except what still waits for its transaction
	return nil
}
