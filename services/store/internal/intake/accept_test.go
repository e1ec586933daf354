package intake_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/store/internal/intake"
	"github.com/pillarbox/pillarbox/services/store/internal/order"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
)

// never is a flush interval that no test lives to see.
const never = time.Hour

// accepting is a desk that answers first, and counts what was given back.
type accepting struct {
	*desk
	released atomic.Int64
}

func newAccepting(t testing.TB, db *database.DB, c intake.Config) *accepting {
	t.Helper()
	c.Mode = intake.ModeAsync
	return &accepting{desk: newDesk(t, db, c)}
}

// begin starts it and waits until it takes orders.
func (a *accepting) begin() {
	a.t.Helper()
	a.start()
	require.Eventually(a.t, func() bool {
		_, err := a.accept("")
		return err == nil
	}, deadline, time.Millisecond)
}

func (a *accepting) accept(reference string) (string, error) {
	p, broken := order.CheckDraft(order.Draft{
		Customer: order.Customer{Email: "ada@example.com"}, Currency: "EUR", Reference: reference,
		Items: []order.DraftItem{{SKU: "TEA-01", Quantity: 2, UnitPrice: "4.50"}},
	})
	require.Empty(a.t, broken)
	return a.Accept(p, intake.Trace{}, 100, func() { a.released.Add(1) })
}

func (a *accepting) stored(db *database.DB, n int) {
	a.t.Helper()
	require.Eventually(a.t, func() bool { return count(a.t, db, "orders") == n }, deadline, 2*time.Millisecond)
	require.Equal(a.t, n, count(a.t, db, "outbox"))
	require.Eventually(a.t, func() bool { return int(a.released.Load()) == n }, deadline, time.Millisecond)
}

func TestAcceptedOrdersAreFlushedByTime(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "store", func(t *testing.T, db *database.DB) {
		a := newAccepting(t, db, intake.Config{FlushEvery: 10 * time.Millisecond, FlushCount: 1000})
		_, err := a.accept("")
		require.ErrorIs(t, err, intake.ErrStopping, "nothing would store it")
		a.begin()
		a.stored(db, 1)
		id, err := a.accept("")
		require.NoError(t, err)
		a.stored(db, 2)
		require.Equal(t, upTo(1), history(t, db, id))
	})
}

func TestAcceptedOrdersAreFlushedByCount(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "store", func(t *testing.T, db *database.DB) {
		a := newAccepting(t, db, intake.Config{FlushEvery: never, FlushCount: 20, Group: 8})
		a.begin() // the first
		for range 18 {
			_, err := a.accept("")
			require.NoError(t, err)
		}
		require.Zero(t, count(t, db, "orders"))
		_, err := a.accept("")
		require.NoError(t, err)
		a.stored(db, 20)
		groups, orders := a.metric("intake_group_requests")
		require.EqualValues(t, 3, groups) // 8, 8 and 4
		require.EqualValues(t, 20, orders)
	})
}

// While the database is away accepted orders stay, to the bound; then they are stored, each once.
func TestAcceptedOrdersOutliveAnOutage(t *testing.T) {
	t.Parallel()
	direct, wired, w := throughWire(t)
	a := newAccepting(t, wired, intake.Config{FlushEvery: time.Millisecond, FlushCount: 5})
	a.begin()
	a.stored(direct, 1)
	w.set(true)
	for range 10 {
		_, err := a.accept("")
		require.NoError(t, err)
	}
	require.True(t, a.Full())
	for range 100 {
		_, err := a.accept("")
		require.ErrorIs(t, err, intake.ErrBusy)
	}
	inMemory, _ := a.metric("intake_accepted_orders")
	require.EqualValues(t, 10, inMemory)
	w.set(false)
	a.stored(direct, 11)
	require.False(t, a.Full())
	lost, _ := a.metric("intake_accepted_lost_total")
	require.Zero(t, lost)
}

// After a commit without a confirmation nobody knows; what was accepted is stored once all the same.
func TestAcceptedOrdersInAnUnknownCommit(t *testing.T) {
	t.Parallel()
	direct, wired, w := throughWire(t)
	a := newAccepting(t, wired, intake.Config{FlushEvery: never, FlushCount: 10})
	w.cutCommit = true
	a.begin()
	for range 9 {
		_, err := a.accept("")
		require.NoError(t, err)
	}
	a.stored(direct, 10)
	require.Equal(t, 10, count(t, direct, "events"))
	lost, _ := a.metric("intake_accepted_lost_total")
	require.Zero(t, lost)
}

// forbid makes the database refuse orders with this reference, which no rule of ours does.
func forbid(t *testing.T, db *database.DB, reference string) {
	t.Helper()
	require.NoError(t, db.Tx(t.Context(), func(ctx context.Context, tx *database.Tx) error {
		text := `CREATE TRIGGER forbidden BEFORE INSERT ON orders WHEN NEW.reference = '` + reference + `'
			BEGIN SELECT RAISE(ABORT, 'forbidden'); END`
		if tx.Dialect().Postgres() {
			text = `ALTER TABLE orders ADD CONSTRAINT forbidden CHECK (reference <> '` + reference + `')`
		}
		_, err := tx.ExecContext(ctx, text)
		return err
	}))
}

func TestAnAcceptedOrderThatIsRefusedTakesNoOtherWithIt(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "store", func(t *testing.T, db *database.DB) {
		forbid(t, db, "poison")
		a := newAccepting(t, db, intake.Config{FlushEvery: never, FlushCount: 10})
		a.begin()
		for i := 1; i < 10; i++ {
			reference := "good"
			if i == 4 {
				reference = "poison"
			}
			_, err := a.accept(reference)
			require.NoError(t, err)
		}
		require.Eventually(t, func() bool { return a.released.Load() == 10 }, deadline, time.Millisecond)
		require.Equal(t, 9, count(t, db, "orders"))
		require.Equal(t, 9, count(t, db, "outbox"))
		lost, _ := a.metric("intake_accepted_lost_total")
		require.EqualValues(t, 1, lost)
		inMemory, _ := a.metric("intake_accepted_orders")
		require.Zero(t, inMemory)
	})
}

func TestStopStoresWhatWasAccepted(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "store", func(t *testing.T, db *database.DB) {
		a := newAccepting(t, db, intake.Config{FlushEvery: never, FlushCount: 1000, Group: 100})
		a.begin()
		var accepted atomic.Int64
		accepted.Store(1)
		var clients sync.WaitGroup
		begun := make(chan struct{}, 4)
		for range 4 {
			clients.Go(func() {
				for n := 0; ; n++ {
					if _, err := a.accept(""); err != nil {
						return // stopping, or full
					}
					accepted.Add(1)
					if n == 50 {
						begun <- struct{}{}
					}
				}
			})
		}
		<-begun
		a.stop()
		clients.Wait()
		require.EqualValues(t, accepted.Load(), count(t, db, "orders"))
		require.Equal(t, accepted.Load(), a.released.Load())
		_, err := a.accept("")
		require.ErrorIs(t, err, intake.ErrStopping)
	})
}

func TestAStopWithoutDatabaseTellsWhatIsLost(t *testing.T) {
	t.Parallel()
	direct, wired, w := throughWire(t)
	a := newAccepting(t, wired, intake.Config{FlushEvery: never, FlushCount: 1000, Drain: 50 * time.Millisecond, Group: 2})
	a.begin()
	w.set(true)
	for range 4 {
		_, err := a.accept("")
		require.NoError(t, err)
	}
	a.stop()
	require.Zero(t, count(t, direct, "orders"))
	lost, _ := a.metric("intake_accepted_lost_total")
	require.EqualValues(t, 5, lost)
	require.EqualValues(t, 5, a.released.Load())
}

func TestWhatCannotBePublishedIsNotAccepted(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "store", func(t *testing.T, db *database.DB) {
		a := newAccepting(t, db, intake.Config{FlushEvery: time.Millisecond, MaxEvent: 700})
		a.begin()
		size := func() (n int) {
			require.NoError(t, db.Read().QueryRowContext(t.Context(), "SELECT max(size) FROM outbox").Scan(&n))
			return n
		}
		a.stored(db, 1)
		// Around the limit: none that is accepted is refused later.
		taken := 1
		for room := 700 - size() - 40; room < 700-size()+40; room++ {
			_, err := a.accept(strings.Repeat("x", max(room, 0)))
			if err == nil {
				taken++
			} else {
				require.ErrorIs(t, err, intake.ErrTooLarge)
			}
			a.stored(db, taken)
		}
		require.Greater(t, taken, 1)
		require.Less(t, taken, 81)
		lost, _ := a.metric("intake_accepted_lost_total")
		require.Zero(t, lost)
		_, err := a.Place(t.Context(), placement(t), nil, intake.Trace{}, 100)
		require.NoError(t, err, "other requests go on beside")
	})
}
