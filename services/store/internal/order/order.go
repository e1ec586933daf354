// Package order holds the rules of an order: what may be placed, how it may change, what
// it costs. It knows no HTTP, no SQL and no clock.
//
// It promises that a Placement or a Revision that it hands out breaks no rule, that money
// is exact, and that every wrong field is named at once. It keeps nothing, so that a
// crash leaves nothing behind.
package order

import (
	"errors"
	"slices"
	"time"
)

// Status of an order.
type Status string

// The states. Cancelled is final.
const (
	Placed    Status = "placed"
	Cancelled Status = "cancelled"
)

// ErrCancelled: a cancelled order can no longer change.
var ErrCancelled = errors.New("order is cancelled")

// Order is one order after its latest change.
type Order struct {
	ID        string
	Version   int64 // 1, 2, 3 … without gaps
	Status    Status
	Customer  Customer
	Currency  string
	Items     []Item
	Total     Amount
	Reference string
	PlacedAt  time.Time
	UpdatedAt time.Time
}

// Customer is who ordered.
type Customer struct {
	Email  string
	Name   string
	Locale string
}

// Item is one line of an order.
type Item struct {
	SKU       string
	Name      string
	Quantity  int64
	UnitPrice Amount
}

// Revise returns the order after r, and whether that differs. An order that stays the same
// keeps its version.
func (o Order) Revise(r Revision, at time.Time) (revised Order, changed bool, err error) {
	if o.Status == Cancelled {
		return o, false, ErrCancelled
	}
	revised = o
	if r.items != nil {
		revised.Items, revised.Total = r.items, r.total
	}
	if r.name != nil {
		revised.Customer.Name = *r.name
	}
	if revised.Customer == o.Customer && slices.Equal(revised.Items, o.Items) {
		return o, false, nil
	}
	return revised.next(at), true, nil
}

// Cancel returns the cancelled order, and whether that differs.
func (o Order) Cancel(at time.Time) (cancelled Order, changed bool) {
	if o.Status == Cancelled {
		return o, false
	}
	o.Status = Cancelled
	return o.next(at), true
}

// next is the order's next version. Its time never runs backwards, whatever the clock does.
func (o Order) next(at time.Time) Order {
	o.Version++
	if at.After(o.UpdatedAt) {
		o.UpdatedAt = at
	}
	return o
}
