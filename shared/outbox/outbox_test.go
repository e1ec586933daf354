package outbox_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
	"github.com/pillarbox/pillarbox/shared/outbox"
	"github.com/stretchr/testify/require"
)

func TestAppendKeepsTheGivenOrder(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "store", func(t *testing.T, db *database.DB) {
		b := &bundle{t: t, db: db}
		var rows []outbox.Row
		for v := range int64(450) { // several statements
			rows = append(rows, row("one", v+1, 100))
		}
		rows = append(rows, row("big", 1, 900_000), row("big", 2, 900_000), row("big", 3, 900_000),
			row("big", 4, 900_000), row("big", 5, 900_000), row("big", 6, 900_000))
		b.commit(rows...)
		found, err := db.Read().QueryContext(t.Context(), `SELECT o.event_id, o.size, e.seq - o.seq
			FROM outbox o JOIN events e ON e.id = o.event_id ORDER BY o.seq`)
		require.NoError(t, err)
		defer func() { require.NoError(t, found.Close()) }()
		for _, r := range rows {
			var id string
			var size, differ int
			require.True(t, found.Next())
			require.NoError(t, found.Scan(&id, &size, &differ))
			require.Equal(t, r.Event.ID, id)
			require.Equal(t, len(r.Payload), size)
			require.Zero(t, differ)
		}
		require.False(t, found.Next())
		require.NoError(t, found.Err())
	})
}

func TestAppendIsPartOfTheTransaction(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "store", func(t *testing.T, db *database.DB) {
		b := &bundle{t: t, db: db}
		abort := errors.New("abort")
		require.ErrorIs(t, db.Tx(t.Context(), func(ctx context.Context, tx *database.Tx) error {
			require.NoError(t, outbox.Append(ctx, tx, orders(3)))
			return abort
		}), abort)
		require.Zero(t, b.number(`SELECT (SELECT count(*) FROM outbox) + (SELECT count(*) FROM events)`))
		same := row("order", 1, 10)
		b.commit(same)
		err := db.Tx(t.Context(), func(ctx context.Context, tx *database.Tx) error {
			return outbox.Append(ctx, tx, []outbox.Row{same})
		})
		require.Equal(t, database.ClassUnique, database.Classify(err))
	})
}

func TestStatusShowsTheBacklog(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "store", func(t *testing.T, db *database.DB) {
		b := &bundle{t: t, db: db}
		s, err := outbox.ReadStatus(t.Context(), db)
		require.NoError(t, err)
		require.Equal(t, outbox.Status{}, s)
		b.commit(orders(3)...)
		b.exec(`UPDATE outbox SET created_at = created_at - 3600000000 WHERE seq = (SELECT min(seq) FROM outbox)`)
		s, err = outbox.ReadStatus(t.Context(), db)
		require.NoError(t, err)
		require.EqualValues(t, 3, s.Waiting)
		require.InDelta(t, time.Hour.Seconds(), s.OldestAge.Seconds(), 60)
		b.exec(`UPDATE outbox SET dead_reason = 'too large' WHERE seq = (SELECT min(seq) FROM outbox)`)
		s, err = outbox.ReadStatus(t.Context(), db)
		require.NoError(t, err)
		require.EqualValues(t, 2, s.Waiting)
		require.EqualValues(t, 1, s.Dead)
		require.Less(t, s.OldestAge, time.Minute)
	})
}
