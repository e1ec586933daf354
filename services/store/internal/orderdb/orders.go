// Package orderdb is the store's SQL: orders, the answers kept for idempotency keys, and the
// timeline.
//
// Functions that write take the caller's transaction and promise nothing until it commits; a
// crash before that leaves nothing. The functions never log and never wait for anything but
// the database.
package orderdb

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/pillarbox/pillarbox/services/store/internal/order"
	"github.com/pillarbox/pillarbox/shared/database"
)

var (
	// ErrNotFound: there is no such order.
	ErrNotFound = errors.New("no such order")
	// ErrOvertaken: somebody else has written the order meanwhile.
	ErrOvertaken = errors.New("another writer was there first")
)

const orderColumns = `id, version, status, customer_email, customer_name, locale, currency, items, total_minor, ` +
	`reference, placed_at, updated_at`

// storedItem is an element of orders.items. Amounts are text with all their decimals, so that
// a row can be read without a table of currencies.
type storedItem struct {
	SKU       string `json:"sku"`
	Name      string `json:"name,omitempty"`
	Quantity  int64  `json:"quantity"`
	UnitPrice string `json:"unit_price"`
}

// Now is the database's clock.
func Now(ctx context.Context, tx *database.Tx) (time.Time, error) {
	var micros int64
	if err := tx.QueryRowContext(ctx, "SELECT "+tx.Dialect().Now()).Scan(&micros); err != nil {
		return time.Time{}, fmt.Errorf("read clock: %w", err)
	}
	return database.Time(micros), nil
}

// Save writes the orders as they are now: new ones are inserted, changed ones replaced. The
// caller holds the locks of those that exist. An order that is already at its version or
// beyond is ErrOvertaken, since somebody wrote without the lock.
func Save(ctx context.Context, tx *database.Tx, orders []order.Order) error {
	if len(orders) == 0 {
		return nil
	}
	s, err := Insert(tx.Dialect(), orders)
	if err != nil {
		return err
	}
	result, err := tx.ExecContext(ctx, s.SQL+`
		ON CONFLICT (id) DO UPDATE SET
			version = excluded.version, status = excluded.status, customer_name = excluded.customer_name,
			items = excluded.items, total_minor = excluded.total_minor, updated_at = excluded.updated_at
		WHERE orders.version < excluded.version`, s.Args...)
	if err != nil {
		return fmt.Errorf("save orders: %w", err)
	}
	switch n, err := result.RowsAffected(); {
	case err != nil:
		return fmt.Errorf("save orders: %w", err)
	case n != int64(len(orders)):
		return fmt.Errorf("save orders: %d of %d written: %w", n, len(orders), ErrOvertaken)
	}
	return nil
}

// Insert returns the statement that writes new orders, at least one.
func Insert(d database.Dialect, orders []order.Order) (database.Statement, error) {
	var failed error
	rows, args := database.Rows(d, orders, func(o order.Order) []any {
		items, err := encodeItems(o.Items)
		failed = errors.Join(failed, err)
		return []any{
			o.ID, o.Version, string(o.Status), o.Customer.Email, o.Customer.Name, o.Customer.Locale, o.Currency, items,
			o.Total.Minor, o.Reference, database.Micros(o.PlacedAt), database.Micros(o.UpdatedAt),
		}
	})
	if failed != nil {
		return database.Statement{}, failed
	}
	return database.Statement{SQL: `INSERT INTO orders (id, version, status, customer_email, customer_name, locale, currency, items,
		total_minor, reference, placed_at, updated_at) ` + rows, Args: args}, nil
}

// Lock reads the orders with these ids and holds their rows until the transaction ends. Rows
// are locked in the order of their ids, so that two transactions never wait for each other. Ids
// without an order are missing from the result.
func Lock(ctx context.Context, tx *database.Tx, ids []string) (map[string]order.Order, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	condition, arg := tx.Dialect().AnyOf(1, ids)
	rows, err := tx.QueryContext(ctx, `SELECT `+orderColumns+` FROM orders WHERE id `+condition+` ORDER BY id`+tx.Dialect().ForUpdate(), arg)
	if err != nil {
		return nil, fmt.Errorf("lock orders: %w", err)
	}
	found := make(map[string]order.Order, len(ids))
	err = each(rows, func(o order.Order, _ int) bool {
		found[o.ID] = o
		return true
	})
	if err != nil {
		return nil, fmt.Errorf("lock orders: %w", err)
	}
	return found, nil
}

// Get reads one order, or ErrNotFound.
func Get(ctx context.Context, q database.Querier, id string) (order.Order, error) {
	row := q.QueryRowContext(ctx, `SELECT `+orderColumns+` FROM orders WHERE id = $1`, id)
	o, _, err := scan(row)
	if errors.Is(err, sql.ErrNoRows) {
		return order.Order{}, ErrNotFound
	}
	if err != nil {
		return order.Order{}, fmt.Errorf("read order: %w", err)
	}
	return o, nil
}

// pageBytes ends a page early, so that many large orders do not fill the memory.
const pageBytes = 4 << 20

// List reads up to limit orders, the newest first, that come after the order with the id after
// ("" for the first page), and whether more follow. A page of large orders may be shorter.
func List(ctx context.Context, q database.Querier, after string, limit int) (page []order.Order, more bool, err error) {
	where, args := "", []any{limit + 1}
	if after != "" {
		where, args = ` WHERE id < $2`, append(args, after)
	}
	rows, err := q.QueryContext(ctx, `SELECT `+orderColumns+` FROM orders`+where+` ORDER BY id DESC LIMIT $1`, args...)
	if err != nil {
		return nil, false, fmt.Errorf("list orders: %w", err)
	}
	bytes := 0
	err = each(rows, func(o order.Order, size int) bool {
		if more = len(page) == limit || bytes > pageBytes; more {
			return false
		}
		bytes += size
		page = append(page, o)
		return true
	})
	if err != nil {
		return nil, false, fmt.Errorf("list orders: %w", err)
	}
	return page, more, nil
}

// each calls do with every row, until it has enough, and with the size of the row's items.
func each(rows *sql.Rows, do func(o order.Order, size int) bool) (err error) {
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		o, size, err := scan(rows)
		if err != nil {
			return err
		}
		if !do(o, size) {
			return nil
		}
	}
	return rows.Err()
}

func scan(row interface{ Scan(...any) error }) (o order.Order, size int, err error) {
	var items string
	var status string
	var placed, updated int64
	if err := row.Scan(&o.ID, &o.Version, &status, &o.Customer.Email, &o.Customer.Name, &o.Customer.Locale,
		&o.Currency, &items, &o.Total.Minor, &o.Reference, &placed, &updated); err != nil {
		return o, 0, err
	}
	o.Status, o.PlacedAt, o.UpdatedAt = order.Status(status), database.Time(placed), database.Time(updated)
	o.Items, err = decodeItems(items)
	if err != nil {
		return o, 0, fmt.Errorf("order %s: %w", o.ID, err)
	}
	o.Total.Decimals = o.Items[0].UnitPrice.Decimals
	return o, len(items), nil
}

func encodeItems(items []order.Item) (string, error) {
	stored := make([]storedItem, len(items))
	for i, item := range items {
		stored[i] = storedItem{item.SKU, item.Name, item.Quantity, item.UnitPrice.String()}
	}
	text, err := json.Marshal(stored)
	if err != nil {
		return "", fmt.Errorf("encode items: %w", err)
	}
	return string(text), nil
}

func decodeItems(text string) ([]order.Item, error) {
	var stored []storedItem
	if err := json.Unmarshal([]byte(text), &stored); err != nil {
		return nil, fmt.Errorf("decode items: %w", err)
	}
	if len(stored) == 0 {
		return nil, errors.New("decode items: none")
	}
	items := make([]order.Item, 0, len(stored))
	for _, item := range stored {
		price, err := order.ParseAmount(item.UnitPrice)
		if err != nil {
			return nil, fmt.Errorf("decode items: unit price %w", err)
		}
		items = append(items, order.Item{SKU: item.SKU, Name: item.Name, Quantity: item.Quantity, UnitPrice: price})
	}
	return items, nil
}
