package intake_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/store/internal/intake"
	"github.com/pillarbox/pillarbox/services/store/internal/order"
	"github.com/pillarbox/pillarbox/services/store/internal/orderdb"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
)

func TestWhatWaitsIsOneTransaction(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "store", func(t *testing.T, db *database.DB) {
		d := newDesk(t, db, intake.Config{Committers: 1, Group: 30})
		var clients sync.WaitGroup
		for range 40 {
			clients.Go(func() {
				a, err := d.place(nil)
				require.NoError(t, err)
				require.Equal(t, "order "+a.OrderID, string(a.Body))
			})
		}
		d.queued(40)
		d.start()
		clients.Wait()
		groups, requests := d.metric("intake_group_requests")
		require.EqualValues(t, 2, groups) // 30 and 10
		require.EqualValues(t, 40, requests)
		require.Equal(t, 40, count(t, db, "orders"))
		require.Equal(t, 40, count(t, db, "outbox"))
	})
}

func TestGroupsAreBoundedInBytes(t *testing.T) {
	t.Parallel()
	db, _ := databasetest.SQLite(t, "store")
	d := newDesk(t, db, intake.Config{Committers: 1, GroupBytes: 250}) // three of 100
	var clients sync.WaitGroup
	for range 6 {
		clients.Go(func() { d.mustPlace() })
	}
	d.queued(6)
	d.start()
	clients.Wait()
	groups, _ := d.metric("intake_group_requests")
	require.EqualValues(t, 2, groups)
}

func TestOneBadRequestFailsAlone(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "store", func(t *testing.T, db *database.DB) {
		d := newDesk(t, db, intake.Config{Committers: 1})
		var clients sync.WaitGroup
		for range 9 {
			clients.Go(func() { d.mustPlace() })
		}
		clients.Go(func() {
			_, err := d.place(keyed(strings.Repeat("k", 300), "f")) // the table refuses such a key
			require.Error(t, err)
			require.NotErrorIs(t, err, intake.ErrUnavailable)
		})
		d.queued(10)
		d.start()
		clients.Wait()
		redone, _ := d.metric("intake_groups_redone_total")
		require.EqualValues(t, 1, redone)
		require.Equal(t, 9, count(t, db, "orders"))
		require.Equal(t, 9, count(t, db, "outbox"))
	})
}

func TestOneKeyTwiceInAGroup(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "store", func(t *testing.T, db *database.DB) {
		d := newDesk(t, db, intake.Config{Committers: 1})
		ids := make([]string, 5)
		fresh := make(chan bool, 5)
		var clients sync.WaitGroup
		for i := range 5 {
			clients.Go(func() {
				a, err := d.place(keyed("k", "same"))
				require.NoError(t, err)
				require.Equal(t, "order "+a.OrderID, string(a.Body))
				ids[i] = a.OrderID
				fresh <- !a.Replayed
			})
		}
		d.queued(5)
		d.start()
		clients.Wait()
		close(fresh)
		news := 0
		for f := range fresh {
			if f {
				news++
			}
		}
		require.Equal(t, 1, news)
		for _, id := range ids {
			require.Equal(t, ids[0], id)
		}
		_, err := d.place(keyed("k", "other"))
		require.ErrorIs(t, err, intake.ErrKeyReused)
		require.Equal(t, 1, count(t, db, "orders"))
		require.Equal(t, 1, count(t, db, "outbox"))
	})
}

func TestOneKeyAtManyReplicas(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "store", func(t *testing.T, db *database.DB) {
		desks := []*desk{newDesk(t, db, intake.Config{}), newDesk(t, db, intake.Config{}), newDesk(t, db, intake.Config{})}
		var mu sync.Mutex
		ids := map[string]map[string]int{"a": {}, "b": {}, "c": {}}
		var clients sync.WaitGroup
		for i := range 60 {
			clients.Go(func() {
				key := string(rune('a' + i%3))
				a, err := desks[i/3%3].place(keyed(key, "f"))
				require.NoError(t, err)
				mu.Lock()
				defer mu.Unlock()
				ids[key][a.OrderID]++
			})
		}
		for _, d := range desks {
			d.start()
		}
		clients.Wait()
		for key, seen := range ids {
			require.Len(t, seen, 1, key)
		}
		require.Equal(t, 3, count(t, db, "orders"))
	})
}

func TestVersionsHaveNoGaps(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "store", func(t *testing.T, db *database.DB) {
		desks := []*desk{newDesk(t, db, intake.Config{}), newDesk(t, db, intake.Config{})}
		for _, d := range desks {
			d.start()
		}
		ids := []string{desks[0].mustPlace(), desks[0].mustPlace(), desks[0].mustPlace()}
		var clients sync.WaitGroup
		for i := range 60 {
			clients.Go(func() {
				_, err := desks[i%2].Revise(context.Background(), ids[i%3], nil, rename(t, string(rune('A'+i))), intake.Trace{}, 10)
				require.NoError(t, err)
			})
		}
		clients.Wait()
		for _, id := range ids {
			require.Equal(t, upTo(21), history(t, db, id))
			o, err := orderdb.Get(t.Context(), db.Read(), id)
			require.NoError(t, err)
			require.EqualValues(t, 21, o.Version)
		}
	})
}

func TestOneOfManyWithTheSameVersionWins(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "store", func(t *testing.T, db *database.DB) {
		d := newDesk(t, db, intake.Config{Committers: 2})
		d.start()
		id := d.mustPlace()
		first := func(version int64) bool { return version == 1 }
		won := make(chan order.Order, 20)
		var clients sync.WaitGroup
		for i := range 20 {
			clients.Go(func() {
				o, err := d.Revise(context.Background(), id, first, rename(t, string(rune('A'+i))), intake.Trace{}, 10)
				if err == nil {
					won <- o
					return
				}
				require.ErrorIs(t, err, intake.ErrVersion)
			})
		}
		clients.Wait()
		require.Len(t, won, 1)
		o := <-won
		stored, err := orderdb.Get(t.Context(), db.Read(), id)
		require.NoError(t, err)
		require.Equal(t, o, stored)
		require.Equal(t, upTo(2), history(t, db, id))
	})
}

func TestChangesOfManyOrdersInOneGroup(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "store", func(t *testing.T, db *database.DB) {
		first := newDesk(t, db, intake.Config{})
		first.start()
		a, b := first.mustPlace(), first.mustPlace()
		d := newDesk(t, db, intake.Config{Committers: 1})
		var clients sync.WaitGroup
		wait := 0
		queue := func(do func() error, want error) {
			clients.Go(func() { require.ErrorIs(t, do(), want) })
			wait++
			d.queued(wait)
		}
		revise := func(id, name string) func() error {
			return func() error {
				_, err := d.Revise(context.Background(), id, nil, rename(t, name), intake.Trace{}, 10)
				return err
			}
		}
		cancel := func(id string) func() error {
			return func() error {
				o, err := d.Cancel(context.Background(), id, nil, intake.Trace{})
				if err == nil {
					require.Equal(t, order.Cancelled, o.Status)
				}
				return err
			}
		}
		queue(revise(a, "x"), nil)
		queue(revise(b, "x"), nil)
		queue(cancel(a), nil)
		queue(revise(a, "y"), order.ErrCancelled)
		queue(cancel(a), nil)
		queue(revise("00000000-0000-0000-0000-000000000000", "x"), orderdb.ErrNotFound)
		queue(func() error { _, err := d.place(nil); return err }, nil)
		d.start()
		clients.Wait()
		groups, _ := d.metric("intake_group_requests")
		require.EqualValues(t, 1, groups)
		require.Equal(t, upTo(3), history(t, db, a))
		require.Equal(t, upTo(2), history(t, db, b))
		require.Equal(t, 3, count(t, db, "orders"))
	})
}
