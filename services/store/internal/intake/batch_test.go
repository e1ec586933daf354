package intake_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/store/internal/intake"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
)

// items are n orders, those at the given indexes with the keys.
func items(t testing.TB, n int, keys map[int]*intake.Keyed) []intake.Item {
	t.Helper()
	all := make([]intake.Item, n)
	for i := range all {
		all[i] = intake.Item{Placement: placement(t), Keyed: keys[i], Size: 100}
	}
	return all
}

func TestBatchGoesInFewTransactions(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "store", func(t *testing.T, db *database.DB) {
		d := newDesk(t, db, intake.Config{Group: 100})
		d.start()
		first, later := keyed("k", "f"), keyed("k", "f")
		outcomes := d.PlaceAll(t.Context(), items(t, 250, map[int]*intake.Keyed{
			3: first, 4: later, 240: later, 241: keyed("k", "other"), 249: keyed("n", "f"),
		}), intake.Trace{})
		ids := map[string]bool{}
		for i, o := range outcomes {
			if i == 241 {
				require.ErrorIs(t, o.Err, intake.ErrKeyReused)
				continue
			}
			require.NoError(t, o.Err, i)
			require.Equal(t, "order "+o.Answer.OrderID, string(o.Answer.Body))
			require.Equal(t, i == 4 || i == 240, o.Answer.Replayed, i)
			ids[o.Answer.OrderID] = true
		}
		require.Equal(t, outcomes[3].Answer.OrderID, outcomes[4].Answer.OrderID)
		require.Equal(t, outcomes[3].Answer.OrderID, outcomes[240].Answer.OrderID, "the first one, over parts")
		require.Len(t, ids, 247)
		require.Equal(t, 247, count(t, db, "orders"))
		require.Equal(t, 247, count(t, db, "outbox"))
		groups, orders := d.metric("intake_group_requests")
		require.EqualValues(t, 3, groups)
		require.EqualValues(t, 250, orders)
		require.Empty(t, d.PlaceAll(t.Context(), nil, intake.Trace{}))
	})
}

func TestPartsAreBoundedInBytes(t *testing.T) {
	t.Parallel()
	db, _ := databasetest.SQLite(t, "store")
	d := newDesk(t, db, intake.Config{GroupBytes: 250}) // three of 100
	d.start()
	for _, o := range d.PlaceAll(t.Context(), items(t, 6, nil), intake.Trace{}) {
		require.NoError(t, o.Err)
	}
	groups, _ := d.metric("intake_group_requests")
	require.EqualValues(t, 2, groups)
}

// Requests of several orders share transactions, within the group's size.
func TestRequestsShareGroups(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "store", func(t *testing.T, db *database.DB) {
		for _, c := range []struct {
			mode   intake.Mode
			groups int
		}{{intake.ModeGroup, 3}, {intake.ModeSingle, 5}} {
			d := newDesk(t, db, intake.Config{Mode: c.mode, Group: 10, Committers: 1})
			before := count(t, db, "orders")
			var clients sync.WaitGroup
			// Of ten the first group has 1 + 1 + 7; what does not fit is the next one's first.
			for waits, n := range []int{1, 1, 7, 3, 8} {
				clients.Go(func() {
					for _, o := range d.PlaceAll(context.Background(), items(t, n, nil), intake.Trace{}) {
						require.NoError(t, o.Err)
					}
				})
				d.queued(waits + 1)
			}
			d.start()
			clients.Wait()
			groups, _ := d.metric("intake_group_requests")
			require.EqualValues(t, c.groups, groups, c.mode)
			require.Equal(t, 20, count(t, db, "orders")-before)
		}
	})
}

func TestOneBadItemFailsAlone(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "store", func(t *testing.T, db *database.DB) {
		d := newDesk(t, db, intake.Config{Group: 5})
		d.start()
		outcomes := d.PlaceAll(t.Context(), items(t, 12, map[int]*intake.Keyed{
			7: keyed(strings.Repeat("k", 300), "f"), // the table refuses such a key
		}), intake.Trace{})
		for i, o := range outcomes {
			require.Equal(t, i == 7, o.Err != nil, "%d: %v", i, o.Err)
		}
		require.Equal(t, 11, count(t, db, "orders"))
		require.Equal(t, 11, count(t, db, "outbox"))
	})
}

func TestBatchMeetsAFullQueue(t *testing.T) {
	t.Parallel()
	db, _ := databasetest.SQLite(t, "store")
	d := newDesk(t, db, intake.Config{Queue: 1})
	var clients sync.WaitGroup
	clients.Go(func() { d.mustPlace() })
	d.queued(1)
	for _, o := range d.PlaceAll(t.Context(), items(t, 300, nil), intake.Trace{}) {
		require.ErrorIs(t, o.Err, intake.ErrBusy)
	}
	refused, _ := d.metric("intake_refused_total")
	require.EqualValues(t, 300, refused)
	d.start()
	clients.Wait()
	require.Equal(t, 1, count(t, db, "orders"))
}

// The parts after a failure are not tried: the answer must not wait for one time-out after another.
func TestBatchEndsWithTheDatabase(t *testing.T) {
	t.Parallel()
	direct, wired, w := throughWire(t)
	d := newDesk(t, wired, intake.Config{Group: 10})
	d.start()
	d.mustPlace()
	w.set(true)
	for _, o := range d.PlaceAll(t.Context(), items(t, 1000, nil), intake.Trace{}) {
		require.ErrorIs(t, o.Err, intake.ErrUnavailable)
	}
	groups, _ := d.metric("intake_groups_redone_total")
	require.Zero(t, groups)
	require.Equal(t, 1, count(t, direct, "orders"))
	d.stop()
	for _, o := range d.PlaceAll(t.Context(), items(t, 3, nil), intake.Trace{}) {
		require.ErrorIs(t, o.Err, intake.ErrStopping)
	}
}

// A commit without a confirmation leaves its own part in doubt, and only that.
func TestBatchWithAnUnknownCommit(t *testing.T) {
	t.Parallel()
	direct, wired, w := throughWire(t)
	d := newDesk(t, wired, intake.Config{Group: 10})
	keys := map[int]*intake.Keyed{}
	for i := range 30 {
		keys[i] = keyed(fmt.Sprintf("k%d", i), "f")
	}
	w.cutCommit = true
	d.start()
	for i, o := range d.PlaceAll(t.Context(), items(t, 30, keys), intake.Trace{}) {
		if i < 10 {
			require.ErrorIs(t, o.Err, intake.ErrUnknown)
		} else {
			require.ErrorIs(t, o.Err, intake.ErrUnavailable)
		}
	}
	require.Eventually(t, func() bool { // sent again, as a client would
		for _, o := range d.PlaceAll(t.Context(), items(t, 30, keys), intake.Trace{}) {
			if o.Err != nil {
				return false
			}
		}
		return true
	}, deadline, 10*time.Millisecond)
	require.Equal(t, 30, count(t, direct, "orders"))
	require.Equal(t, 30, count(t, direct, "outbox"))
}
