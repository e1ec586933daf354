package ledger_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"pgregory.net/rapid"

	"github.com/pillarbox/pillarbox/services/loyalty/internal/ledger"
	"github.com/pillarbox/pillarbox/services/loyalty/internal/points"
	"github.com/pillarbox/pillarbox/shared/consumer"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
	"github.com/pillarbox/pillarbox/shared/events"
)

const ada = "ada@example.com"

func at(version int64) time.Time { return time.Date(2026, 3, 1, 12, 0, int(version), 0, time.UTC) }

func event(kind, order string, version int64, email, total string) consumer.Event {
	data, err := json.Marshal(events.Order{ID: order, Version: version, Status: "placed", Currency: "EUR", Total: total,
		Customer: events.Customer{Email: email}, PlacedAt: at(1)})
	if err != nil {
		panic(err) // strings and numbers always encode
	}
	return consumer.Event{Event: events.Event{ID: fmt.Sprintf("%s-%d", order, version), Source: events.Source, Type: kind,
		Time: at(version), Subject: order, Version: version, Data: data}}
}

func placed(order, email, total string) consumer.Event {
	return event(events.TypePlaced, order, 1, email, total)
}

func changed(order string, version int64, email, total string) consumer.Event {
	return event(events.TypeChanged, order, version, email, total)
}

func cancelled(order string, version int64, email, total string) consumer.Event {
	return event(events.TypeCancelled, order, version, email, total)
}

func try(ctx context.Context, db *database.DB, due ...consumer.Event) error {
	return db.Tx(ctx, func(ctx context.Context, tx *database.Tx) error { return ledger.Record(ctx, tx, due) })
}

func record(t *testing.T, db *database.DB, due ...consumer.Event) {
	t.Helper()
	require.NoError(t, try(t.Context(), db, due...))
}

// balance also checks what always holds: the balance is the sum of the entries.
func balance(t require.TestingT, db *database.DB, account string) int64 {
	s, err := ledger.New(db).Statement(context.Background(), ledger.Query{Account: account, Limit: 10_000})
	require.NoError(t, err)
	var sum int64
	for _, e := range s.Entries {
		sum += e.Points
	}
	require.Equal(t, sum, s.Points, "account %s", account)
	return s.Points
}

func TestOrderIsWorthItsLastTotalAndNothingWhenCancelled(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		record(t, db)
		record(t, db, placed("o1", "ada@EXAMPLE.com", "9.99"), placed("o2", ada, "0.50"))
		require.EqualValues(t, 9, balance(t, db, ada))
		record(t, db, changed("o1", 2, ada, "3.00"), changed("o1", 3, ada, "21.01"), changed("o2", 2, ada, "1.00"))
		require.EqualValues(t, 22, balance(t, db, ada))
		record(t, db, cancelled("o1", 4, ada, "21.01"))
		require.EqualValues(t, 1, balance(t, db, ada))
		record(t, db, changed("o2", 3, ada, "100.00"), cancelled("o2", 4, ada, "100.00"))
		require.Zero(t, balance(t, db, ada))
	})
}

func TestEveryEventLeavesItsMark(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		record(t, db, placed("o1", ada, "0.99"), changed("o1", 2, ada, "5.00"), changed("o1", 3, ada, "5.75"))
		record(t, db, cancelled("o1", 4, ada, "5.75"))
		s, err := ledger.New(db).Statement(t.Context(), ledger.Query{Account: ada, Limit: 9})
		require.NoError(t, err)
		require.Zero(t, s.Next)
		last := s.Entries[0].Position
		for i, e := range s.Entries {
			require.Equal(t, last-int64(i), e.Position)
			s.Entries[i].Position = 0
		}
		require.Equal(t, []ledger.Entry{ // the newest first
			{EventID: "o1-4", OrderID: "o1", Points: -5, Reason: points.Cancelled, At: at(4)},
			{EventID: "o1-3", OrderID: "o1", Points: 0, Reason: points.Changed, At: at(3)},
			{EventID: "o1-2", OrderID: "o1", Points: 5, Reason: points.Changed, At: at(2)},
			{EventID: "o1-1", OrderID: "o1", Points: 0, Reason: points.Placed, At: at(1)},
		}, s.Entries)
	})
}

func TestAnotherAddressTakesThePointsAlong(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		record(t, db, placed("o1", ada, "9.00"), placed("o2", ada, "4.00"))
		record(t, db, changed("o1", 2, "bob@example.com", "12.00"))
		require.EqualValues(t, 4, balance(t, db, ada))
		require.EqualValues(t, 12, balance(t, db, "bob@example.com"))
		record(t, db, cancelled("o1", 3, "cyd@example.com", "12.00"))
		require.EqualValues(t, 4, balance(t, db, ada))
		require.Zero(t, balance(t, db, "bob@example.com"))
		require.Zero(t, balance(t, db, "cyd@example.com"), "the account that the event names is known")
	})
}

// The lanes keep repeated events away; when they are lost, the ledger still knows.
func TestPassedVersionChangesNothing(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		one, two, three := placed("o1", ada, "9.00"), changed("o1", 2, ada, "7.00"), changed("o1", 3, ada, "8.00")
		record(t, db, one, two)
		record(t, db, one)
		record(t, db, one, two, three, three)
		require.EqualValues(t, 8, balance(t, db, ada))
		s, err := ledger.New(db).Statement(t.Context(), ledger.Query{Account: ada, Limit: 9})
		require.NoError(t, err)
		require.Len(t, s.Entries, 3)
	})
}

// A consumer that starts late sees an order for the first time at some later version.
func TestFirstSeenVersionIsCreditedInFull(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		record(t, db, changed("o1", 5, ada, "9.00"), cancelled("o2", 7, ada, "3.00"))
		require.EqualValues(t, 9, balance(t, db, ada))
	})
}

func TestImpossibleEventFailsItsGroupForGood(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		err := try(t.Context(), db, placed("o1", ada, "9.00"), placed("o2", ada, "ten"))
		require.Equal(t, consumer.Permanent, consumer.Classify(err))
		_, err = ledger.New(db).Statement(t.Context(), ledger.Query{Account: ada, Limit: 1})
		require.ErrorIs(t, err, ledger.ErrNoAccount)
	})
}

func TestBalanceIsBounded(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		most := fmt.Sprint(points.MaxPerOrder)
		var group []consumer.Event
		for n := range 1000 {
			group = append(group, placed(fmt.Sprintf("o%d", n), ada, most))
		}
		record(t, db, group...)
		require.EqualValues(t, 1000*points.MaxPerOrder, balance(t, db, ada))
		err := try(t.Context(), db, placed("last", ada, "1.00"))
		require.Equal(t, database.ClassData, database.Classify(err), "%v", err)
		require.EqualValues(t, 1000*points.MaxPerOrder, balance(t, db, ada))
	})
}

// history is a random life of several orders; it returns what each account must hold.
func history(t *rapid.T, prefix string) (all []consumer.Event, want map[string]int64) {
	want = map[string]int64{}
	for o := range rapid.IntRange(1, 4).Draw(t, "orders") {
		order := fmt.Sprintf("%s-o%d", prefix, o)
		worth, account := int64(0), ""
		for v := range rapid.Int64Range(1, 6).Draw(t, "versions") {
			account = fmt.Sprintf("%s-a%d@x", prefix, rapid.IntRange(0, 2).Draw(t, "account"))
			worth = rapid.Int64Range(0, 1_000_000_000).Draw(t, "worth")
			total := fmt.Sprintf("%d.%02d", worth, rapid.IntRange(0, 99).Draw(t, "cents"))
			want[account] += 0 // named, so known
			switch kind := rapid.SampledFrom([]string{events.TypeChanged, events.TypeCancelled}).Draw(t, "kind"); {
			case v == 0:
				all = append(all, placed(order, account, total))
			case kind == events.TypeCancelled:
				all, worth = append(all, cancelled(order, v+1, account, total)), 0
			default:
				all = append(all, changed(order, v+1, account, total))
			}
		}
		want[account] += worth
	}
	return all, want
}

// Whatever happens to orders, in groups of whatever size, with repeats: an account holds the
// whole units of the orders that are open and name it last.
func TestBalanceIsTheSumOverOpenOrders(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		var run atomic.Int64
		rapid.Check(t, func(t *rapid.T) {
			all, want := history(t, fmt.Sprintf("r%d", run.Add(1)))
			for from := 0; from < len(all); {
				to := min(len(all), from+rapid.IntRange(1, 7).Draw(t, "group"))
				back := rapid.IntRange(0, from).Draw(t, "again")
				require.NoError(t, try(context.Background(), db, all[back:to]...))
				from = to
			}
			for account, points := range want {
				require.Equal(t, points, balance(t, db, account), account)
			}
		})
	})
}

// Groups with different orders of the same accounts run side by side, in opposite orders.
func TestConcurrentGroupsLoseNothing(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		const workers, groups, accounts = 6, 10, 8
		g, ctx := errgroup.WithContext(t.Context())
		for w := range workers {
			g.Go(func() error {
				for n := range groups {
					var due []consumer.Event
					for a := range accounts {
						account := fmt.Sprintf("a%d@x", a)
						if w%2 == 1 {
							account = fmt.Sprintf("a%d@x", accounts-1-a)
						}
						due = append(due, placed(fmt.Sprintf("o-%d-%d-%d", w, n, a), account, "3.99"))
					}
					if err := try(ctx, db, due...); err != nil {
						return err
					}
				}
				return nil
			})
		}
		require.NoError(t, g.Wait())
		for a := range accounts {
			require.EqualValues(t, workers*groups*3, balance(t, db, fmt.Sprintf("a%d@x", a)))
		}
	})
}

func TestStatementPagesJoinWithoutGapOrRepeat(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		for n := range 11 {
			record(t, db, placed(fmt.Sprintf("o%d", n), ada, "1"), placed(fmt.Sprintf("p%d", n), "bob@example.com", "1"))
		}
		for _, limit := range []int{1, 4, 11, 12} {
			var got []string
			for q := (ledger.Query{Account: ada, Limit: limit}); ; {
				s, err := ledger.New(db).Statement(t.Context(), q)
				require.NoError(t, err)
				require.EqualValues(t, 11, s.Points, "every page has the balance")
				require.LessOrEqual(t, len(s.Entries), limit)
				for _, e := range s.Entries {
					got = append(got, e.OrderID)
				}
				if s.Next == 0 {
					break
				}
				q.Before = s.Next
			}
			require.Equal(t, strings.Fields("o10 o9 o8 o7 o6 o5 o4 o3 o2 o1 o0"), got, "limit %d", limit)
		}
		s, err := ledger.New(db).Statement(t.Context(), ledger.Query{Account: ada, Before: 1, Limit: 5})
		require.NoError(t, err)
		require.EqualValues(t, 11, s.Points, "an account without older entries is still known")
		require.Empty(t, s.Entries)
	})
}
