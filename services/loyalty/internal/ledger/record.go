// Package ledger keeps the loyalty points: a ledger of postings per order event and
// the balance of each account.
//
// The balance of an account is the sum of its ledger rows, always: both are written
// in one transaction. An event takes effect once and an order's events in the order of their
// versions: the consumer's lanes see to it, and the ledger itself refuses a version
// that it has already passed, also when a lane was lost. What is reversed is what the
// ledger says was credited, not what the event says. A crash leaves a group of
// events wholly posted or not at all, and those events come again.
package ledger

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/pillarbox/pillarbox/services/loyalty/internal/points"
	"github.com/pillarbox/pillarbox/shared/consumer"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/failpoint"
)

// Record posts what the events say. It is the effect of the loyalty service; the caller
// holds the lanes of their orders and gives the events of one order in version order.
// Events about no order are worth nothing to anybody and leave no mark.
func Record(ctx context.Context, tx *database.Tx, due []consumer.Event) error {
	claims := make([]points.Claim, 0, len(due))
	orders := map[string]*order{}
	for _, e := range due {
		if !e.OfOrder() {
			continue
		}
		claim, err := points.ClaimOf(e.Event)
		if err != nil {
			return fmt.Errorf("read event: %w", err) // it is events.ErrInvalid, which is permanent
		}
		claims = append(claims, claim)
		orders[claim.OrderID] = &order{credits: points.Credits{}}
	}
	if err := readOrders(ctx, tx, orders); err != nil {
		return err
	}
	postings, sums := post(claims, orders)
	if len(postings) == 0 {
		return nil
	}
	// The accounts come first: their row locks make the ledger's positions of one account
	// rise in the order of the commits, so that a page of its entries is never filled in later.
	if err := addToAccounts(ctx, tx, sums); err != nil {
		return err
	}
	if err := insertPostings(ctx, tx, postings); err != nil {
		return err
	}
	failpoint.Hit("loyalty.ledger_written")
	return nil
}

// order is what the ledger holds of one order.
type order struct {
	version int64 // the highest posted
	credits points.Credits
}

type posting struct {
	points.Claim
	points.Posting
}

// post works the claims out in their order, and what each account gains in all.
func post(claims []points.Claim, orders map[string]*order) ([]posting, map[string]int64) {
	var postings []posting
	sums := map[string]int64{}
	for _, claim := range claims {
		o := orders[claim.OrderID]
		if claim.Version <= o.version {
			continue
		}
		o.version = claim.Version
		for _, p := range o.credits.Settle(claim) {
			postings = append(postings, posting{claim, p})
			sums[p.Account] += p.Points
		}
	}
	return postings, sums
}

func readOrders(ctx context.Context, tx *database.Tx, orders map[string]*order) error {
	if len(orders) == 0 {
		return nil
	}
	condition, arg := tx.Dialect().AnyOf(1, slices.Collect(maps.Keys(orders)))
	rows, err := tx.QueryContext(ctx, `SELECT order_id, customer, CAST(SUM(points) AS BIGINT), MAX(order_version)
		FROM ledger WHERE order_id `+condition+` GROUP BY order_id, customer`, arg)
	if err != nil {
		return fmt.Errorf("read credits: %w", err)
	}
	defer func() { _ = rows.Close() }() // rows.Err below says what went wrong
	for rows.Next() {
		var id, account string
		var sum, version int64
		if err := rows.Scan(&id, &account, &sum, &version); err != nil {
			return fmt.Errorf("scan credit: %w", err)
		}
		o := orders[id]
		o.credits[account] = sum
		o.version = max(o.version, version)
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("read credits: %w", err)
	}
	return nil
}

// addToAccounts adds in the database, so that two transactions with different orders of one
// account lose nothing, and in sorted order, so that they do not deadlock.
func addToAccounts(ctx context.Context, tx *database.Tx, sums map[string]int64) error {
	values, args := database.Rows(tx.Dialect(), slices.Sorted(maps.Keys(sums)), func(account string) []any {
		return []any{account, sums[account]}
	})
	_, err := tx.ExecContext(ctx, `INSERT INTO accounts (customer, points) `+values+`
		ON CONFLICT (customer) DO UPDATE
		SET points = accounts.points + excluded.points, updated_at = excluded.updated_at`, args...)
	if err != nil {
		return fmt.Errorf("add to accounts: %w", err)
	}
	return nil
}

func insertPostings(ctx context.Context, tx *database.Tx, postings []posting) error {
	values, args := database.Rows(tx.Dialect(), postings, func(p posting) []any {
		return []any{p.EventID, p.Posting.Account, p.OrderID, p.Version, p.Posting.Points, string(p.Reason), database.Micros(p.At)}
	})
	_, err := tx.ExecContext(ctx, `INSERT INTO ledger (event_id, customer, order_id, order_version, points, reason, at) `+values, args...)
	if err != nil {
		return fmt.Errorf("insert ledger rows: %w", err)
	}
	return nil
}
