package ledger_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/mailer/internal/ledger"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
)

func row(order string, version int64) ledger.Delivery {
	id := fmt.Sprintf("%s-%d", order, version)
	return ledger.Delivery{
		ID: "d-" + id, EventID: "e-" + id, OrderID: order, Version: version, Recipient: "ada@example.com",
		Template: "placed", StagedName: id + ".x.eml", MessageID: id + "@example.com",
	}
}

func insert(t *testing.T, db *database.DB, rows ...ledger.Delivery) error {
	t.Helper()
	return db.Tx(t.Context(), func(ctx context.Context, tx *database.Tx) error { return ledger.Insert(ctx, tx, rows) })
}

func staged(t *testing.T, db *database.DB, upTo map[string]int64) []string {
	t.Helper()
	found, err := ledger.Staged(t.Context(), db.Read(), upTo)
	require.NoError(t, err)
	var ids []string
	for _, d := range found {
		ids = append(ids, d.ID)
	}
	return ids
}

func TestStagedIsInVersionOrderUpToTheGivenVersion(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "mailer", func(t *testing.T, db *database.DB) {
		for _, version := range []int64{10, 3, 11, 1, 2} {
			require.NoError(t, insert(t, db, row("b", version), row("a", version)))
		}
		require.Equal(t, []string{"d-a-1", "d-a-2", "d-b-1", "d-b-2", "d-b-3", "d-b-10"}, staged(t, db, map[string]int64{"a": 2, "b": 10, "c": 9}))
		require.Empty(t, staged(t, db, nil))
		require.NoError(t, ledger.Accept(t.Context(), db, []string{"d-b-2", "d-b-1", "d-unknown"}))
		require.Equal(t, []string{"d-b-3"}, staged(t, db, map[string]int64{"b": 9}))
	})
}

func TestARowThatExistsStaysAsItIs(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "mailer", func(t *testing.T, db *database.DB) {
		first := row("a", 1)
		require.NoError(t, insert(t, db, first))
		second := first
		second.StagedName = "another.y.eml"
		require.NoError(t, insert(t, db, second, row("a", 2)))
		found, err := ledger.Find(t.Context(), db.Read(), []string{first.ID, "d-a-2", "d-a-3"})
		require.NoError(t, err)
		require.Equal(t, map[string]ledger.Delivery{first.ID: first, "d-a-2": row("a", 2)}, found)

		// The same event under another id is the same event; another event under the same id is refused.
		second.ID = "d-other"
		require.NoError(t, insert(t, db, second))
		foreign := first
		foreign.EventID = "e-foreign"
		require.ErrorIs(t, insert(t, db, foreign), ledger.ErrNoRow)
	})
}

func TestManyRowsAtOnce(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "mailer", func(t *testing.T, db *database.DB) {
		var rows []ledger.Delivery
		for i := range 1000 { // several statements
			rows = append(rows, row("o", int64(i+1)))
		}
		slices.Reverse(rows)
		require.NoError(t, insert(t, db, rows...))
		require.Len(t, staged(t, db, map[string]int64{"o": 1000}), 1000)
	})
}

func TestOverdueAndBacklog(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "mailer", func(t *testing.T, db *database.DB) {
		count, oldest, err := ledger.Backlog(t.Context(), db)
		require.NoError(t, err)
		require.Zero(t, count)
		require.Zero(t, oldest)
		require.NoError(t, insert(t, db, row("a", 1), row("a", 2), row("b", 1)))
		require.NoError(t, db.Tx(t.Context(), func(ctx context.Context, tx *database.Tx) error {
			_, err := tx.ExecContext(ctx, `UPDATE deliveries SET created_at = created_at - 60000000 - version WHERE order_id = 'a'`)
			return err
		}))
		overdue, err := ledger.Overdue(t.Context(), db, 30*time.Second, 10)
		require.NoError(t, err)
		require.Equal(t, map[string]int64{"a": 2}, overdue)
		overdue, err = ledger.Overdue(t.Context(), db, -time.Minute, 2)
		require.NoError(t, err)
		require.Equal(t, map[string]int64{"a": 2}, overdue, "the oldest two")
		count, oldest, err = ledger.Backlog(t.Context(), db)
		require.NoError(t, err)
		require.EqualValues(t, 3, count)
		require.InDelta(t, 60, oldest.Seconds(), 30)
	})
}

func TestMarkerIsOneForAll(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "mailer", func(t *testing.T, db *database.DB) {
		first, founded, err := ledger.Marker(t.Context(), db, "one")
		require.NoError(t, err)
		require.Equal(t, "one", first)
		require.False(t, founded)
		second, founded, err := ledger.Marker(t.Context(), db, "two")
		require.NoError(t, err)
		require.Equal(t, "one", second)
		require.False(t, founded)
		require.NoError(t, ledger.Founded(t.Context(), db, "two"))
		_, founded, err = ledger.Marker(t.Context(), db, "three")
		require.NoError(t, err)
		require.False(t, founded, "not by the note of another marker")
		require.NoError(t, ledger.Founded(t.Context(), db, "one"))
		require.NoError(t, ledger.Founded(t.Context(), db, "one"))
		_, founded, err = ledger.Marker(t.Context(), db, "four")
		require.NoError(t, err)
		require.True(t, founded)
	})
}
