package drill

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/pillarbox/pillarbox/services/suite/e2e"
)

// place is one version of one order.
type place struct {
	order   string
	version int64
}

// judge waits for the effects and compares them with what was answered.
func (s *scene) judge(ctx context.Context) error {
	facts := s.truth.Facts()
	s.report.Facts = len(facts)
	orders := map[string]bool{}
	for _, f := range facts {
		orders[f.Order] = true
	}
	s.report.Orders = len(orders)
	line, end := s.suite.Line(), time.Now().Add(mostSettling)
	before, err := s.effects(ctx)
	if err != nil {
		return err
	}
	for {
		if line.WaitConserved(ctx, &s.truth, s.mails, s.Settle) == nil {
			break
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		now, err := s.effects(ctx)
		if err != nil {
			return err
		}
		if now == before || time.Now().After(end) {
			break
		}
		before = now
	}
	return s.compare(ctx, facts)
}

// effects counts what has come.
func (s *scene) effects(ctx context.Context) (int, error) {
	mails, err := s.mails.Mails()
	if err != nil {
		return 0, fmt.Errorf("read mails: %w", err)
	}
	entries, err := s.suite.Line().AuditEntries(ctx, "")
	return len(mails) + len(entries), err
}

func (s *scene) compare(ctx context.Context, facts []e2e.Fact) error {
	mails, err := s.mails.Mails()
	if err != nil {
		return fmt.Errorf("read mails: %w", err)
	}
	places := make([]place, len(mails))
	for i, m := range mails {
		places[i] = place{m.Order, m.Version}
	}
	s.report.match("mail", facts, places)
	s.report.order(places)

	line := s.suite.Line()
	entries, err := line.AuditEntries(ctx, "")
	if err != nil {
		return fmt.Errorf("read the audit log: %w", err)
	}
	places = make([]place, len(entries))
	for i, e := range entries {
		places[i] = place{e.Order, e.Version}
	}
	s.report.match("audit record", facts, places)

	balances := s.truth.Balances()
	for _, customer := range slices.Sorted(maps.Keys(balances)) {
		account, err := line.Account(ctx, customer)
		if err != nil {
			return fmt.Errorf("account %s: %w", customer, err)
		}
		if want := balances[customer]; account.Points != want {
			s.report.find(Finding{Problem: Wrong, Effect: "points of " + customer, Detail: fmt.Sprintf("%d where %d must be", account.Points, want)})
		}
	}
	r := &s.report
	if r.Facts == 0 {
		return errors.New("no request was answered")
	}
	if len(r.Findings) == 0 { // what the comparison above does not look at: a mail's address
		if err := line.Conserved(ctx, &s.truth, s.mails); err != nil {
			r.find(Finding{Problem: Wrong, Effect: err.Error()})
		}
	}
	r.Clean = len(r.Findings) == 0
	return nil
}

// match finds what is missing, there more than once, or of nothing that was answered.
func (r *Report) match(effect string, facts []e2e.Fact, got []place) {
	count := map[place]int{}
	for _, p := range got {
		count[p]++
	}
	for _, f := range facts {
		p := place{f.Order, f.Version}
		switch n := count[p]; {
		case n == 0:
			r.find(Finding{Problem: Lost, Effect: effect, Order: p.order, Version: p.version})
		case n > 1:
			r.find(Finding{Problem: Duplicated, Effect: effect, Order: p.order, Version: p.version, Detail: fmt.Sprintf("%d times", n)})
		}
		delete(count, p)
	}
	for p := range count {
		r.find(Finding{Problem: Unknown, Effect: effect, Order: p.order, Version: p.version})
	}
}

// order finds mails that appeared, for the first time, after a later version's.
func (r *Report) order(mails []place) {
	latest, seen := map[string]int64{}, map[place]bool{}
	for _, m := range mails {
		if !seen[m] && m.version < latest[m.order] {
			r.find(Finding{Problem: Reordered, Effect: "mail", Order: m.order, Version: m.version, Detail: fmt.Sprintf("after version %d", latest[m.order])})
		}
		seen[m] = true
		latest[m.order] = max(latest[m.order], m.version)
	}
}
