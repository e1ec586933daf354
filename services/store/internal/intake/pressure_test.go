package intake_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/store/internal/intake"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
)

func TestFullQueueRefuses(t *testing.T) {
	t.Parallel()
	db, _ := databasetest.SQLite(t, "store")
	d := newDesk(t, db, intake.Config{Queue: 2})
	var clients sync.WaitGroup
	for range 2 {
		clients.Go(func() { d.mustPlace() })
	}
	d.queued(2)
	require.True(t, d.Full())
	_, err := d.place(nil)
	require.ErrorIs(t, err, intake.ErrBusy)
	d.start()
	clients.Wait()
	require.False(t, d.Full())
	d.mustPlace()
	require.Equal(t, 3, count(t, db, "orders"))
}

func TestRequestGivenUpInTheQueueIsNotStored(t *testing.T) {
	t.Parallel()
	db, _ := databasetest.SQLite(t, "store")
	d := newDesk(t, db, intake.Config{Wait: 10 * time.Millisecond})
	_, err := d.place(nil) // nobody commits
	require.ErrorIs(t, err, intake.ErrBusy)
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = d.Place(gone, placement(t), nil, intake.Trace{}, 1)
	require.ErrorIs(t, err, intake.ErrBusy)
	d.start()
	d.stop()
	require.Zero(t, count(t, db, "orders"))
}

func TestStopStoresWhatWaits(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "store", func(t *testing.T, db *database.DB) {
		d := newDesk(t, db, intake.Config{Group: 3})
		var clients sync.WaitGroup
		for range 10 {
			clients.Go(func() { d.mustPlace() })
		}
		d.queued(10)
		d.stop() // starts with a context that has ended already
		clients.Wait()
		require.Equal(t, 10, count(t, db, "orders"))
		_, err := d.place(nil)
		require.ErrorIs(t, err, intake.ErrStopping)
	})
}

func TestClosedDatabase(t *testing.T) {
	t.Parallel()
	databasetest.EachURL(t, "store", func(t *testing.T, _ *database.DB, url string) {
		db, err := database.Open(url, database.Options{Schema: "store"})
		require.NoError(t, err)
		d := newDesk(t, db, intake.Config{Committers: 1})
		require.NoError(t, db.Close())
		var clients sync.WaitGroup
		for range 5 {
			clients.Go(func() {
				_, err := d.place(nil)
				require.ErrorIs(t, err, intake.ErrUnavailable)
			})
		}
		d.queued(5)
		d.start()
		clients.Wait()
	})
}

// A row that somebody holds delays those who want it, and costs the others of their group only a second try.
func TestLockedOrderDelaysOnlyItsOwn(t *testing.T) {
	t.Parallel()
	db, _ := databasetest.Postgres(t, "store")
	first := newDesk(t, db, intake.Config{})
	first.start()
	held, free := first.mustPlace(), first.mustPlace()

	release := lock(t, db, held)
	d := newDesk(t, db, intake.Config{Committers: 1})
	var clients sync.WaitGroup
	change := func(id string, want error) {
		clients.Go(func() {
			_, err := d.Revise(context.Background(), id, nil, rename(t, "x"), intake.Trace{}, 1)
			require.ErrorIs(t, err, want)
		})
	}
	change(held, intake.ErrBusy)
	d.queued(1)
	change(free, nil)
	d.queued(2)
	clients.Go(func() { d.mustPlace() })
	d.queued(3)
	d.start()
	clients.Wait()
	release()
	_, err := d.Revise(t.Context(), held, nil, rename(t, "x"), intake.Trace{}, 1)
	require.NoError(t, err)
	require.Equal(t, upTo(2), history(t, db, held))
}

// A request alone that waits for a lock lets others begin after a moment; as many as there may be transactions at
// once, and a stop waits for all of them.
func TestLockedOrderHoldsUpNobodyElse(t *testing.T) {
	t.Parallel()
	db, _ := databasetest.Postgres(t, "store")
	d := newDesk(t, db, intake.Config{Committers: 2})
	d.start()
	held := d.mustPlace()
	release := lock(t, db, held)
	revise := func() <-chan error {
		revised := make(chan error, 1)
		go func() {
			_, err := d.Revise(context.Background(), held, nil, rename(t, "x"), intake.Trace{}, 1)
			revised <- err
		}()
		require.Eventually(t, func() bool { return waiting(t, db) > 0 }, deadline, time.Millisecond)
		return revised
	}
	revised := revise()
	for try := 1; ; try++ {
		for range 3 {
			d.mustPlace()
		}
		if len(revised) == 0 {
			break // all three got past it
		}
		require.ErrorIs(t, <-revised, intake.ErrBusy) // it waits for some seconds; this machine may be slower
		require.Less(t, try, 5, "held up each time")
		revised = revise()
	}
	stopped := make(chan struct{})
	go func() {
		d.stop()
		close(stopped)
	}()
	require.Eventually(t, func() bool {
		_, err := d.place(nil)
		return errors.Is(err, intake.ErrStopping)
	}, deadline, time.Millisecond)
	select {
	case <-stopped: // only after it
		require.Eventually(t, func() bool { return len(revised) == 1 }, 500*time.Millisecond, time.Millisecond)
	default:
	}
	release()
	if err := <-revised; err != nil {
		require.ErrorIs(t, err, intake.ErrBusy)
	}
	<-stopped
}

// waiting is the number of sessions of this test's user that wait for a row of orders.
func waiting(t *testing.T, db *database.DB) (n int) {
	t.Helper()
	require.NoError(t, db.Read().QueryRowContext(t.Context(), `SELECT count(*) FROM pg_stat_activity
		WHERE wait_event_type = 'Lock' AND query LIKE '%FROM orders%FOR UPDATE%' AND usename = current_user`).Scan(&n))
	return n
}

// lock holds the row of an order until release.
func lock(t *testing.T, db *database.DB, id string) (release func()) {
	t.Helper()
	locked, enough := make(chan struct{}), make(chan struct{})
	holder := make(chan error, 1)
	go func() {
		holder <- db.Tx(context.Background(), func(ctx context.Context, tx *database.Tx) error {
			// A session that waits in a statement is not idle, so that no time-out ends it.
			var one int
			if err := tx.QueryRowContext(ctx, "SELECT 1 FROM orders WHERE id = $1 FOR UPDATE", id).Scan(&one); err != nil {
				return err
			}
			close(locked)
			for {
				select {
				case <-enough:
					return errors.New("enough")
				case <-time.After(100 * time.Millisecond):
					if err := tx.QueryRowContext(ctx, "SELECT 1").Scan(&one); err != nil {
						return err
					}
				}
			}
		})
	}()
	<-locked
	return func() {
		t.Helper()
		close(enough)
		require.ErrorContains(t, <-holder, "enough")
	}
}
