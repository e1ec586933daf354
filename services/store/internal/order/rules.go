package order

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/pillarbox/pillarbox/shared/events"
)

// The limits of an order. Characters are Unicode code points.
const (
	MaxItems     = 500
	MaxQuantity  = 1_000_000
	MaxSKU       = 64
	MaxName      = 200
	MaxReference = 200
)

// Violation is a broken rule: which field, by JSON pointer into the request, and what is wrong.
type Violation struct {
	Pointer string
	Detail  string
}

// Draft is an order as somebody asks for it: of the right shape, not yet checked.
type Draft struct {
	Customer  Customer
	Currency  string
	Items     []DraftItem
	Reference string
}

// DraftItem is one line of a draft.
type DraftItem struct {
	SKU       string
	Name      string
	Quantity  int64
	UnitPrice string
}

// Placement is a checked draft.
type Placement struct {
	customer  Customer
	currency  string
	items     []Item
	total     Amount
	reference string
}

// CheckDraft checks every rule and names every field that breaks one.
func CheckDraft(d Draft) (Placement, []Violation) {
	var c checker
	c.add("/customer/email", checkAddress(d.Customer.Email))
	c.add("/customer/name", checkText(d.Customer.Name, MaxName))
	c.add("/customer/locale", checkLocale(d.Customer.Locale))
	c.add("/reference", checkText(d.Reference, MaxReference))
	decimals, known := Decimals(d.Currency)
	switch {
	case d.Currency == "":
		c.add("/currency", "is required")
	case !known:
		c.add("/currency", `must be an ISO 4217 code such as "EUR"`)
	}
	items, total := c.items(d.Items, decimals, known)
	if len(c.violations) > 0 {
		return Placement{}, c.violations
	}
	return Placement{d.Customer, d.Currency, items, total, d.Reference}, nil
}

// Order is the order that the placement makes.
func (p Placement) Order(id string, at time.Time) Order {
	return Order{
		ID: id, Version: 1, Status: Placed, Customer: p.customer, Currency: p.currency, Items: p.items,
		Total: p.total, Reference: p.reference, PlacedAt: at, UpdatedAt: at,
	}
}

// RevisionDraft is a change as somebody asks for it; what is nil stays.
type RevisionDraft struct {
	Items        *[]DraftItem
	CustomerName *string
}

// Revision is a checked change.
type Revision struct {
	items []Item // nil: they stay
	total Amount
	name  *string
}

// CheckRevision checks a change against the rules for an order whose amounts have so many decimals.
func CheckRevision(d RevisionDraft, decimals uint8) (Revision, []Violation) {
	var c checker
	var r Revision
	if d.CustomerName != nil {
		c.add("/customer/name", checkText(*d.CustomerName, MaxName))
		r.name = d.CustomerName
	}
	if d.Items != nil {
		r.items, r.total = c.items(*d.Items, decimals, true)
	}
	if len(c.violations) > 0 {
		return Revision{}, c.violations
	}
	return r, nil
}

// checker collects what is wrong.
type checker struct{ violations []Violation }

func (c *checker) add(pointer, detail string) {
	if detail != "" {
		c.violations = append(c.violations, Violation{Pointer: pointer, Detail: detail})
	}
}

// items checks the lines and adds them up. Without a known currency the sum means nothing and is left out.
func (c *checker) items(drafts []DraftItem, decimals uint8, known bool) ([]Item, Amount) {
	total := Amount{Decimals: decimals}
	switch {
	case len(drafts) == 0:
		c.add("/items", "must have at least one item")
	case len(drafts) > MaxItems:
		c.add("/items", fmt.Sprintf("must not have more than %d items", MaxItems))
		drafts = drafts[:MaxItems]
	}
	items, fits := make([]Item, 0, len(drafts)), true
	for i, d := range drafts {
		item, ok := c.item("/items/"+strconv.Itoa(i), d, decimals, known)
		if !ok || !known {
			continue
		}
		items = append(items, item)
		if fits {
			total, fits = total.plusTimes(item.Quantity, item.UnitPrice)
		}
	}
	if !fits || total.exceeds(events.MaxTotal) {
		c.add("/items", "add up to a total that is too large")
	}
	return items, total
}

func (c *checker) item(at string, d DraftItem, decimals uint8, known bool) (Item, bool) {
	before := len(c.violations)
	if strings.TrimSpace(d.SKU) == "" {
		c.add(at+"/sku", "is required")
	} else {
		c.add(at+"/sku", checkText(d.SKU, MaxSKU))
	}
	c.add(at+"/name", checkText(d.Name, MaxName))
	if d.Quantity < 1 || d.Quantity > MaxQuantity {
		c.add(at+"/quantity", fmt.Sprintf("must be between 1 and %d", MaxQuantity))
	}
	price, detail := checkPrice(d.UnitPrice, decimals, known)
	c.add(at+"/unit_price", detail)
	return Item{SKU: d.SKU, Name: d.Name, Quantity: d.Quantity, UnitPrice: price}, len(c.violations) == before
}

func checkPrice(text string, decimals uint8, known bool) (Amount, string) {
	if text == "" {
		return Amount{}, "is required"
	}
	price, err := ParseAmount(text)
	if err == nil && known {
		price, err = price.in(decimals)
	}
	if err != nil {
		return Amount{}, err.Error()
	}
	return price, ""
}
