package orderdb_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/store/internal/order"
	"github.com/pillarbox/pillarbox/services/store/internal/orderdb"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
)

var noon = time.Date(2026, 5, 4, 12, 0, 0, 123000, time.UTC)

func newOrder(t *testing.T, items int) order.Order {
	t.Helper()
	d := order.Draft{Customer: order.Customer{Email: "ada@example.com", Name: "Ädä", Locale: "de"}, Currency: "BHD", Reference: "<r&\">"}
	for range items {
		d.Items = append(d.Items, order.DraftItem{SKU: "A", Name: strings.Repeat("😀", 200), Quantity: 3, UnitPrice: "1.5"})
	}
	p, broken := order.CheckDraft(d)
	require.Empty(t, broken)
	return p.Order(uuid.Must(uuid.NewV7()).String(), noon)
}

func save(t *testing.T, db *database.DB, orders ...order.Order) error {
	t.Helper()
	return db.Tx(t.Context(), func(ctx context.Context, tx *database.Tx) error { return orderdb.Save(ctx, tx, orders) })
}

func TestSaveAndRead(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "store", func(t *testing.T, db *database.DB) {
		a, b := newOrder(t, 1), newOrder(t, 2)
		require.NoError(t, save(t, db))
		require.NoError(t, save(t, db, a, b))
		got, err := orderdb.Get(t.Context(), db.Read(), a.ID)
		require.NoError(t, err)
		require.Equal(t, a, got)
		_, err = orderdb.Get(t.Context(), db.Read(), "none")
		require.ErrorIs(t, err, orderdb.ErrNotFound)

		require.Error(t, save(t, db, a), "the same version again")
		cancelled, _ := a.Cancel(noon.Add(time.Second))
		require.Error(t, save(t, db, cancelled, b), "one stale order fails all")
		require.NoError(t, save(t, db, cancelled))
		require.NoError(t, db.Tx(t.Context(), func(ctx context.Context, tx *database.Tx) error {
			locked, err := orderdb.Lock(ctx, tx, []string{a.ID, b.ID, "none"})
			require.NoError(t, err)
			require.Equal(t, map[string]order.Order{a.ID: cancelled, b.ID: b}, locked)
			now, err := orderdb.Now(ctx, tx)
			require.NoError(t, err)
			require.WithinDuration(t, time.Now(), now, time.Hour)
			return nil
		}))
	})
}

func TestPageOfLargeOrdersIsShorter(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "store", func(t *testing.T, db *database.DB) {
		want := map[string]bool{}
		for range 14 { // 400 KB of items each
			o := newOrder(t, order.MaxItems)
			want[o.ID] = true
			require.NoError(t, save(t, db, o))
		}
		after, pages := "", 0
		for more := true; more; pages++ {
			var page []order.Order
			var err error
			page, more, err = orderdb.List(t.Context(), db.Read(), after, 200)
			require.NoError(t, err)
			require.NotEmpty(t, page)
			for _, o := range page {
				require.True(t, want[o.ID])
				delete(want, o.ID)
			}
			after = page[len(page)-1].ID
		}
		require.Empty(t, want)
		require.Equal(t, 2, pages)
	})
}

func TestClaims(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "store", func(t *testing.T, db *database.DB) {
		answer := func(caller, key, body string) orderdb.Answer {
			return orderdb.Answer{
				Key: orderdb.Key{Caller: caller, Name: key}, Fingerprint: []byte{0, 1}, OrderID: "o", Status: 201, Body: []byte(body), At: noon,
			}
		}
		claim := func(answers ...orderdb.Answer) (claimed map[orderdb.Key]bool) {
			require.NoError(t, db.Tx(t.Context(), func(ctx context.Context, tx *database.Tx) (err error) {
				claimed, err = orderdb.Claim(ctx, tx, answers)
				return err
			}))
			return claimed
		}
		require.Empty(t, claim())
		require.Len(t, claim(answer("", "a", "first"), answer("", "b", "first"), answer("x", "a", "first")), 3)
		require.Equal(t, map[orderdb.Key]bool{{Caller: "x", Name: "b"}: true},
			claim(answer("", "a", "second"), answer("x", "a", "second"), answer("x", "b", "second")))
		found, err := orderdb.Answers(t.Context(), db.Read(), []orderdb.Key{{Name: "a"}, {Caller: "x", Name: "b"}, {Name: "none"}})
		require.NoError(t, err)
		require.Equal(t, map[orderdb.Key]orderdb.Answer{
			{Name: "a"}: answer("", "a", "first"), {Caller: "x", Name: "b"}: answer("x", "b", "second"),
		}, found)
	})
}

func TestOldAnswersAreRemovedInBites(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "store", func(t *testing.T, db *database.DB) {
		now, err := db.Now(t.Context())
		require.NoError(t, err)
		require.NoError(t, db.Tx(t.Context(), func(ctx context.Context, tx *database.Tx) error {
			var answers []orderdb.Answer
			for i := range 12 {
				at := now.Add(-49 * time.Hour)
				if i >= 7 {
					at = now.Add(-47 * time.Hour)
				}
				answers = append(answers, orderdb.Answer{
					Key: orderdb.Key{Name: fmt.Sprintf("%02d", i)}, Fingerprint: []byte{1}, OrderID: "o", Status: 201, Body: []byte{}, At: at,
				})
			}
			_, err = orderdb.Claim(ctx, tx, answers)
			return err
		}))
		for _, want := range []int64{5, 2, 0} {
			var removed int64
			err := db.Tx(t.Context(), func(ctx context.Context, tx *database.Tx) (err error) {
				removed, err = orderdb.RemoveAnswers()(ctx, tx, now.Add(-48*time.Hour), 5)
				return err
			})
			require.NoError(t, err)
			require.Equal(t, want, removed)
		}
	})
}
