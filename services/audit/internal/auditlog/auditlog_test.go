package auditlog_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/pillarbox/pillarbox/services/audit/internal/auditlog"
	"github.com/pillarbox/pillarbox/shared/consumer"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
	"github.com/pillarbox/pillarbox/shared/events"
)

// event is the n-th event of the stream. Its id does not sort as the stream does.
func event(t testing.TB, n int, order string, version int64) consumer.Event {
	t.Helper()
	at := time.Date(2026, 3, 1, 12, 0, n, 123_456_000, time.UTC)
	data, err := json.Marshal(events.Order{ID: order, Version: version, Status: "placed", Currency: "EUR", Total: "9.00",
		Customer: events.Customer{Email: "ada@example.com"}, PlacedAt: at})
	require.NoError(t, err)
	e := events.Event{ID: fmt.Sprintf("e%03d", 999-n), Source: events.Source, Type: events.TypePlaced, Time: at,
		Subject: order, Version: version, Data: data}
	raw, err := e.Encode()
	require.NoError(t, err)
	return consumer.Event{Event: e, Raw: raw, Sequence: uint64(n)}
}

func record(t *testing.T, db *database.DB, due ...consumer.Event) {
	t.Helper()
	require.NoError(t, db.Tx(t.Context(), func(ctx context.Context, tx *database.Tx) error {
		return auditlog.Record(ctx, tx, due)
	}))
}

func page(t *testing.T, db *database.DB, q auditlog.Query) auditlog.Page {
	t.Helper()
	if q.Limit == 0 {
		q.Limit = 200
	}
	p, err := auditlog.New(db).Page(t.Context(), q)
	require.NoError(t, err)
	return p
}

func ids(p auditlog.Page) []string {
	var out []string
	for _, e := range p.Entries {
		out = append(out, e.EventID)
	}
	return out
}

func TestEntryHoldsTheEventAsItCame(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "audit", func(t *testing.T, db *database.DB) {
		e := event(t, 1, "o1", 3)
		e.Raw = append([]byte("  "), e.Raw...) // nothing tidies it
		before, err := db.Now(t.Context())
		require.NoError(t, err)
		record(t, db, e)
		p := page(t, db, auditlog.Query{Order: "o1"})
		require.Len(t, p.Entries, 1)
		got := p.Entries[0]
		require.Positive(t, got.Position)
		require.WithinRange(t, got.RecordedAt, before.Truncate(time.Millisecond), before.Add(time.Minute))
		got.Position, got.RecordedAt = 0, time.Time{}
		require.Equal(t, auditlog.Entry{EventID: e.ID, Type: events.TypePlaced, OrderID: "o1", OrderVersion: 3,
			OccurredAt: e.Time, Event: e.Raw}, got)
	})
}

func TestEventIsRecordedOnceAndInStreamOrder(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "audit", func(t *testing.T, db *database.DB) {
		one, two, three := event(t, 1, "o1", 1), event(t, 2, "o1", 2), event(t, 3, "o2", 1)
		record(t, db)
		record(t, db, two, one, two) // the same event may stand twice in one group
		record(t, db, one, three, two)
		require.Equal(t, []string{one.ID, two.ID, three.ID}, ids(page(t, db, auditlog.Query{})))
		require.Equal(t, []string{one.ID, two.ID}, ids(page(t, db, auditlog.Query{Order: "o1"})))
		require.Empty(t, page(t, db, auditlog.Query{Order: "o3"}).Entries)
	})
}

func TestGroupIsRecordedWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "audit", func(t *testing.T, db *database.DB) {
		bad := event(t, 2, "o1", 2)
		bad.ID = strings.Repeat("x", 65)
		err := db.Tx(t.Context(), func(ctx context.Context, tx *database.Tx) error {
			return auditlog.Record(ctx, tx, []consumer.Event{event(t, 1, "o1", 1), bad})
		})
		require.Error(t, err)
		require.Equal(t, database.ClassData, database.Classify(err))
		require.Empty(t, page(t, db, auditlog.Query{}).Entries)
	})
}

// Several replicas may hold the same events, each in an order of its own.
func TestCompetingReplicasRecordEachEventOnce(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "audit", func(t *testing.T, db *database.DB) {
		var all []consumer.Event
		for n := range 60 {
			all = append(all, event(t, n+1, fmt.Sprintf("o%d", n%7), int64(n/7+1)))
		}
		g, ctx := errgroup.WithContext(t.Context())
		for replica := range 4 {
			g.Go(func() error {
				due := slices.Clone(all)
				if replica%2 == 1 {
					slices.Reverse(due)
				}
				for group := range slices.Chunk(due, 20) {
					if err := db.Tx(ctx, func(ctx context.Context, tx *database.Tx) error {
						return auditlog.Record(ctx, tx, group)
					}); err != nil {
						return err
					}
				}
				return nil
			})
		}
		require.NoError(t, g.Wait())
		got := ids(page(t, db, auditlog.Query{}))
		slices.Sort(got)
		require.Len(t, got, 60)
		require.Len(t, slices.Compact(got), 60)
	})
}

func TestPagesJoinWithoutGapOrRepeat(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "audit", func(t *testing.T, db *database.DB) {
		for n := range 23 {
			record(t, db, event(t, n+1, fmt.Sprintf("o%d", n%2), int64(n/2+1)))
		}
		for _, order := range []string{"", "o0"} {
			whole := ids(page(t, db, auditlog.Query{Order: order}))
			for _, limit := range []int{1, 4, len(whole), len(whole) + 1} {
				var got []string
				for q := (auditlog.Query{Order: order, Limit: limit}); ; {
					p := page(t, db, q)
					require.LessOrEqual(t, len(p.Entries), limit)
					got = append(got, ids(p)...)
					if p.Next == 0 {
						break
					}
					require.NotEmpty(t, p.Entries, "a page that says there is more is not empty")
					q.After = p.Next
				}
				require.Equal(t, whole, got, "order %q limit %d", order, limit)
			}
		}
	})
}

func TestPageOfLargeEventsEndsEarly(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "audit", func(t *testing.T, db *database.DB) {
		for n := range 4 {
			e := event(t, n+1, "o1", int64(n+1))
			e.Raw = append(e.Raw, strings.Repeat(" ", events.MaxSize-len(e.Raw))...)
			record(t, db, e)
		}
		p := page(t, db, auditlog.Query{})
		require.Len(t, p.Entries, 2, "the second begins below the limit of a page, the third does not")
		rest := page(t, db, auditlog.Query{After: p.Next})
		require.Len(t, rest.Entries, 2)
		require.Zero(t, rest.Next)
	})
}

func TestEntriesAreAppendOnly(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "audit", func(t *testing.T, db *database.DB) {
		record(t, db, event(t, 1, "o1", 1))
		statements := []string{"UPDATE entries SET type = 'x'", "DELETE FROM entries",
			"INSERT INTO entries (event_id, type, order_id, order_version, occurred_at, event) " +
				"SELECT event_id, 'x', order_id, order_version, occurred_at, event FROM entries WHERE true " +
				"ON CONFLICT (event_id) DO UPDATE SET type = excluded.type"}
		if db.Dialect().Postgres() {
			statements = append(statements, "TRUNCATE entries")
		}
		for _, statement := range statements {
			err := db.Tx(t.Context(), func(ctx context.Context, tx *database.Tx) error {
				_, err := tx.ExecContext(ctx, statement)
				return err
			})
			require.ErrorContains(t, err, "append-only", statement)
		}
		p := page(t, db, auditlog.Query{})
		require.Len(t, p.Entries, 1)
		require.Equal(t, events.TypePlaced, p.Entries[0].Type)
	})
}
