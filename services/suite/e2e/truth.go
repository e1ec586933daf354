// Package e2e drives the whole line from outside, as shops, customers and
// auditors see it, and checks conservation: every acknowledged order, change
// and cancellation has exactly one e-mail, one audit record and the right
// points, in version order, and there is nothing else.
package e2e

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// Fact is one acknowledged version of an order.
type Fact struct {
	Order    string
	Version  int64
	Status   string
	Total    string
	Customer string
}

// Truth is what the store has acknowledged.
type Truth struct {
	mu    sync.Mutex // guards facts
	facts map[string]map[int64]Fact
}

// Acknowledge records the version that an answer showed. Repeated answers are
// one fact.
func (t *Truth) Acknowledge(o Order) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.facts == nil {
		t.facts = map[string]map[int64]Fact{}
	}
	if t.facts[o.ID] == nil {
		t.facts[o.ID] = map[int64]Fact{}
	}
	t.facts[o.ID][o.Version] = Fact{o.ID, o.Version, o.Status, o.Total, o.Customer.Email}
}

// Facts returns all facts, by order and version.
func (t *Truth) Facts() []Fact {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []Fact
	for _, versions := range t.facts {
		for _, f := range versions {
			all = append(all, f)
		}
	}
	slices.SortFunc(all, func(a, b Fact) int {
		return cmp.Or(strings.Compare(a.Order, b.Order), cmp.Compare(a.Version, b.Version))
	})
	return all
}

// Count is the number of facts.
func (t *Truth) Count() int { return len(t.Facts()) }

// Balances returns the points that each customer must have: the whole currency
// units of every order that is not cancelled.
func (t *Truth) Balances() map[string]int64 {
	last := map[string]Fact{}
	for _, f := range t.Facts() {
		last[f.Order] = f // ascending versions: the last one stays
	}
	balances := map[string]int64{}
	for _, f := range last {
		balances[f.Customer] += 0
		if f.Status == "placed" {
			balances[f.Customer] += wholeUnits(f.Total)
		}
	}
	return balances
}

// wholeUnits is the part of a decimal text before the point.
func wholeUnits(total string) int64 {
	whole, _, _ := strings.Cut(total, ".")
	var n int64
	if _, err := fmt.Sscan(whole, &n); err != nil {
		return -1 // no store total reads like this; the comparison then fails
	}
	return n
}
