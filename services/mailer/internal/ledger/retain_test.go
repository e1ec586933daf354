package ledger_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/mailer/internal/ledger"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
)

func TestOnlyDeliveriesThatAreOverGo(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "mailer", func(t *testing.T, db *database.DB) {
		exec := func(query string, args ...any) {
			require.NoError(t, db.Tx(t.Context(), func(ctx context.Context, tx *database.Tx) error {
				_, err := tx.ExecContext(ctx, query, args...)
				return err
			}))
		}
		now := time.Now()
		before := now.Add(-time.Hour)
		for n, state := range []string{"staged", "accepted", "queued", "sending", "refused", "unknown"} {
			for _, age := range []time.Duration{2 * time.Hour, 0} {
				d := row(state+age.String(), int64(n+1))
				require.NoError(t, insert(t, db, d))
				at := database.Micros(now.Add(-age))
				exec(`UPDATE deliveries SET state = $1, created_at = $2, accepted_at = $2, settled_at = $2 WHERE id = $3`, state, at, d.ID)
				exec(`INSERT INTO lanes (order_id, version) VALUES ($1, 1)`, d.OrderID)
				if state == "refused" {
					exec(`INSERT INTO dead_letters (id, order_id, body, reason) VALUES ($1, $2, $3, 'r')`, "event-"+d.EventID, d.OrderID, []byte{})
				}
			}
		}
		clean := func() (removed int64) {
			require.NoError(t, db.Tx(t.Context(), func(ctx context.Context, tx *database.Tx) error {
				removed = 0
				for _, rule := range ledger.Retention() {
					n, err := rule.Bite(ctx, tx, before, 10)
					if err != nil {
						return err
					}
					removed += n
				}
				return nil
			}))
			return removed
		}
		require.EqualValues(t, 1, clean(), "the old accepted one")
		require.Zero(t, count(t, db, "deliveries WHERE state = 'accepted' AND accepted_at < created_at - 1 OR order_id = 'accepted2h0m0s'"))
		exec(`DELETE FROM dead_letters`)
		require.EqualValues(t, 1, clean(), "the old refused one, whose letter is settled")
		require.Equal(t, 10, count(t, db, "deliveries"))
		require.Equal(t, 9, count(t, db, "lanes WHERE "+ledger.HoldsLane), "all but the accepted one's")
	})
}
