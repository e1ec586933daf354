// Package points holds the rules of the loyalty programme: what an order is worth,
// to which account, and what has to be posted when that changes. It does no I/O.
//
// An order is worth its total in whole units of its currency, rounded down: 9.99 EUR
// are 9 points, 1234 JPY are 1234, 12.345 BHD are 12. A cancelled order is worth
// nothing. Amounts are decimal text, and no float is anywhere near them.
package points

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/pillarbox/pillarbox/shared/events"
)

// MaxPerOrder bounds what one order can be worth. A thousand such orders of one account
// still fit its balance; the store accepts no order over it, so an event that claims more is invalid.
const MaxPerOrder = events.MaxTotal

// maxAccount bounds an account's key in bytes: no deliverable address is longer.
const maxAccount = 320

// Reason says which event posted points.
type Reason string

// The reasons.
const (
	Placed    Reason = "placed"
	Changed   Reason = "changed"
	Cancelled Reason = "cancelled"
)

// Claim is what one event says: the order is worth Points to Account from now on,
// and nothing to anybody else.
type Claim struct {
	EventID string
	OrderID string
	Version int64
	Account string
	Points  int64
	Reason  Reason
	At      time.Time
}

// ClaimOf reads an event. Its errors wrap events.ErrInvalid: the event can never be credited.
func ClaimOf(e events.Event) (Claim, error) {
	order, err := e.Order()
	if err != nil {
		return Claim{}, err
	}
	account, ok := Account(order.Customer.Email)
	if !ok {
		return Claim{}, fmt.Errorf("%w: data.customer.email cannot be an account", events.ErrInvalid)
	}
	worth, ok := Whole(order.Total)
	if !ok {
		return Claim{}, fmt.Errorf("%w: data.total is not an amount from 0 to %d", events.ErrInvalid, MaxPerOrder)
	}
	c := Claim{EventID: e.ID, OrderID: e.Subject, Version: e.Version, Account: account, Points: worth, At: e.Time}
	switch e.Type {
	case events.TypePlaced:
		c.Reason = Placed
	case events.TypeChanged:
		c.Reason = Changed
	case events.TypeCancelled:
		c.Reason, c.Points = Cancelled, 0
	default:
		return Claim{}, fmt.Errorf("%w: unknown type", events.ErrInvalid)
	}
	return c, nil
}

// Whole is the part of a decimal amount before its point. It refuses signs, exponents,
// separators, an empty side of the point, and more than MaxPerOrder.
func Whole(amount string) (int64, bool) {
	whole, fraction, pointed := strings.Cut(amount, ".")
	if !digits(whole) || pointed && !digits(fraction) {
		return 0, false
	}
	n, err := strconv.ParseInt(whole, 10, 64)
	return n, err == nil && n <= MaxPerOrder
}

func digits(s string) bool {
	return s != "" && strings.IndexFunc(s, func(r rune) bool { return r < '0' || r > '9' }) < 0
}

// Account is the key of the account that belongs to a mail address: the address with
// its domain in lower case. Local parts are left alone: only the domain's owner knows whether
// their case matters.
func Account(address string) (string, bool) {
	at := strings.LastIndexByte(address, '@') // a domain holds none, a quoted local part may
	if at < 1 || at == len(address)-1 || !utf8.ValidString(address) || strings.ContainsFunc(address, unicode.IsControl) {
		return "", false
	}
	key := address[:at] + strings.ToLower(address[at:])
	if len(key) > maxAccount {
		return "", false
	}
	return key, true
}

// Posting moves points of one account.
type Posting struct {
	Account string
	Points  int64 // may be negative, or 0
}

// Credits is what an order is worth to each account as things stand.
type Credits map[string]int64

// Settle makes c say what claim says and returns the postings for it: one at the
// claim's account, even of 0 points, so that every event leaves its mark, and one
// at every other account that still held points of the order.
func (c Credits) Settle(claim Claim) []Posting {
	postings := []Posting{{claim.Account, claim.Points - c[claim.Account]}}
	for account, held := range c {
		if account != claim.Account && held != 0 {
			postings = append(postings, Posting{account, -held})
			c[account] = 0
		}
	}
	c[claim.Account] = claim.Points
	slices.SortFunc(postings[1:], func(a, b Posting) int { return strings.Compare(a.Account, b.Account) })
	return postings
}
