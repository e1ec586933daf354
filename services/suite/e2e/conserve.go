package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// AuditEntry is one record as the audit service shows it.
type AuditEntry struct {
	EventID string `json:"event_id"`
	Type    string `json:"type"`
	Order   string `json:"order_id"`
	Version int64  `json:"order_version"`
}

// LedgerRow is one entry of an account.
type LedgerRow struct {
	EventID string `json:"event_id"`
	Order   string `json:"order_id"`
	Points  int64  `json:"points"`
}

// Account is one account as the loyalty service shows it: a page of entries,
// the newest first.
type Account struct {
	Points  int64       `json:"points"`
	Entries []LedgerRow `json:"entries"`
	Next    *string     `json:"next"`
}

// Line is what a scenario needs of the running services.
type Line struct {
	Stores  []string // base addresses, http://host:port
	Audit   string
	Loyalty string
	Admins  []string // base addresses of admin ports
	Pickup  string
	// Publisher is a connection string of the broker with the store's rights, and Token its token
	// when it has no user.
	Publisher, Token string
}

var reader = http.Client{Timeout: 10 * time.Second}

// CloseIdle closes connections that are kept for reuse, so that nothing is left
// running after the last check.
func CloseIdle() { reader.CloseIdleConnections() }

func getJSON(ctx context.Context, address string, into any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	answer, err := reader.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", address, answer.Status)
	}
	return json.NewDecoder(answer.Body).Decode(into)
}

// AuditEntries reads the whole audit log, page by page; order narrows it when
// not empty.
func (l Line) AuditEntries(ctx context.Context, order string) ([]AuditEntry, error) {
	var all []AuditEntry
	query := url.Values{"limit": {"200"}}
	if order != "" {
		query.Set("order", order)
	}
	for {
		var page struct {
			Entries []AuditEntry `json:"entries"`
			Next    *string      `json:"next"`
		}
		if err := getJSON(ctx, l.Audit+"/audit/entries?"+query.Encode(), &page); err != nil {
			return nil, err
		}
		all = append(all, page.Entries...)
		if page.Next == nil {
			return all, nil
		}
		query.Set("after", *page.Next)
	}
}

// Account reads one customer's account.
func (l Line) Account(ctx context.Context, customer string) (Account, error) {
	var a Account
	err := getJSON(ctx, l.Loyalty+"/loyalty/accounts/"+url.PathEscape(customer), &a)
	return a, err
}

// Ledger reads all entries of one customer, the oldest first.
func (l Line) Ledger(ctx context.Context, customer string) ([]LedgerRow, error) {
	var rows []LedgerRow
	query := url.Values{"limit": {"200"}}
	for {
		var page Account
		if err := getJSON(ctx, l.Loyalty+"/loyalty/accounts/"+url.PathEscape(customer)+"?"+query.Encode(), &page); err != nil {
			return nil, err
		}
		rows = append(rows, page.Entries...)
		if page.Next == nil {
			slices.Reverse(rows)
			return rows, nil
		}
		query.Set("after", *page.Next)
	}
}

// Conserved compares the effects with the truth once: nil when every fact has
// exactly one mail, one record and its share of the balance, in version order,
// and nothing else exists.
func (l Line) Conserved(ctx context.Context, truth *Truth, box Mails) error {
	mails, err := box.Mails()
	return errors.Join(err, mailsMatch(truth, mails), l.auditMatches(ctx, truth), l.balancesMatch(ctx, truth))
}

// WaitConserved polls until Conserved holds or the deadline passes. An extra
// effect never goes away again, so the last error tells.
func (l Line) WaitConserved(ctx context.Context, truth *Truth, box Mails, deadline time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, 500*time.Millisecond) {
		// The folder is cheap to look at; the APIs are asked only once it is complete.
		mails, err := box.Mails()
		if err = errors.Join(err, mailsMatch(truth, mails)); err == nil {
			err = l.Conserved(ctx, truth, box)
		}
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not conserved after %s: %w", deadline, err)
		case <-time.After(pause):
		}
	}
}

// position names one version of one order.
type position struct {
	order   string
	version int64
}

// differences lists what is missing, doubled or extra, bounded.
func differences(what string, truth *Truth, got []position) error {
	count := map[position]int{}
	for _, p := range got {
		count[p]++
	}
	var wrong []string
	for _, f := range truth.Facts() {
		p := position{f.Order, f.Version}
		if n := count[p]; n != 1 {
			wrong = append(wrong, fmt.Sprintf("%s v%d: %d", p.order, p.version, n))
		}
		delete(count, p)
	}
	for p, n := range count {
		wrong = append(wrong, fmt.Sprintf("%s v%d: %d but never acknowledged", p.order, p.version, n))
	}
	if len(wrong) == 0 {
		return nil
	}
	slices.Sort(wrong)
	return fmt.Errorf("%s: %d of %d facts wrong: %s", what, len(wrong), truth.Count(), strings.Join(wrong[:min(len(wrong), 5)], "; "))
}

func mailsMatch(truth *Truth, mails []Mail) error {
	customers := map[string]string{}
	for _, f := range truth.Facts() {
		customers[f.Order] = f.Customer
	}
	var got []position
	var errs []error
	for _, m := range mails {
		got = append(got, position{m.Order, m.Version})
		if want, ok := customers[m.Order]; ok && want != m.To {
			errs = append(errs, fmt.Errorf("mail of order %s is addressed to %s", m.Order, m.To))
		}
	}
	return errors.Join(append(errs, differences("mails", truth, got))...)
}

func (l Line) auditMatches(ctx context.Context, truth *Truth) error {
	entries, err := l.AuditEntries(ctx, "")
	if err != nil {
		return err
	}
	var got []position
	for _, e := range entries {
		got = append(got, position{e.Order, e.Version})
	}
	return differences("audit records", truth, got)
}

func (l Line) balancesMatch(ctx context.Context, truth *Truth) error {
	var errs []error
	for customer, want := range truth.Balances() {
		a, err := l.Account(ctx, customer)
		if err != nil {
			errs = append(errs, fmt.Errorf("account %s: %w", customer, err))
			continue
		}
		if a.Points != want {
			errs = append(errs, fmt.Errorf("account %s: %d points, want %d", customer, a.Points, want))
		}
	}
	return errors.Join(errs...)
}
