package e2e_test

import (
	"context"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"mime/quotedprintable"
	"net/mail"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/pillarbox/pillarbox/services/suite/e2e"
)

// deadline is generous: these machines are shared. Speed is measured elsewhere.
const deadline = 60 * time.Second

// bench is what a scenario starts from.
type bench struct {
	e2e.Line
	ctx    context.Context
	truth  *e2e.Truth
	client *e2e.Client
	mails  *e2e.Appearance
}

func begin(t *testing.T, line e2e.Line) *bench {
	t.Helper()
	truth := &e2e.Truth{}
	mails, err := e2e.WatchAppearance(line.Pickup, "", 0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, mails.Stop()) })
	return &bench{
		Line: line, ctx: t.Context(), truth: truth,
		client: e2e.NewClient(truth, line.Stores...), mails: mails,
	}
}

// conserved waits for the effects, hands every mail to the strict parser, and
// checks that everything came in version order and nothing follows.
func (b *bench) conserved(t *testing.T) {
	t.Helper()
	require.NoError(t, b.WaitConserved(b.ctx, b.truth, b.mails, deadline))
	strictlyParsed(t, b.Pickup)
	require.NoError(t, b.Conserved(b.ctx, b.truth, b.mails))
	mails, err := b.mails.Mails()
	require.NoError(t, err)
	require.NoError(t, e2e.InVersionOrder(mails))
	requireLedgerInOrder(t, b)
}

func TestPlaceChangeCancel(t *testing.T) {
	eachShape(t, func(t *testing.T, line e2e.Line) {
		b := begin(t, line)
		placed, err := b.client.Place(b.ctx, e2e.Body("ada@Example.COM", "EUR", 2, "4.50"))
		require.NoError(t, err)
		require.Equal(t, "9.00", placed.Total)
		b.truth.Acknowledge(placed)
		require.Eventually(t, func() bool {
			a, err := b.Account(b.ctx, "ada@example.com")
			return err == nil && a.Points == 9
		}, deadline, 10*time.Millisecond)

		changed, err := b.client.Change(b.ctx, placed, 3, "4.50")
		require.NoError(t, err)
		require.Equal(t, int64(2), changed.Version)
		require.Equal(t, "13.50", changed.Total)
		require.Eventually(t, func() bool {
			a, err := b.Account(b.ctx, "ada@EXAMPLE.com")
			return err == nil && a.Points == 13
		}, deadline, 10*time.Millisecond)

		cancelled, err := b.client.Cancel(b.ctx, changed)
		require.NoError(t, err)
		require.Equal(t, "cancelled", cancelled.Status)
		again, err := b.client.Cancel(b.ctx, cancelled)
		require.NoError(t, err)
		require.Equal(t, cancelled, again)

		b.conserved(t)
		account, err := b.Account(b.ctx, "ada@example.com")
		require.NoError(t, err)
		require.Zero(t, account.Points)
		entries, err := b.AuditEntries(b.ctx, placed.ID)
		require.NoError(t, err)
		require.Len(t, entries, 3)
		mails, err := b.mails.Mails()
		require.NoError(t, err)
		require.Len(t, mails, 3)
		for _, m := range mails {
			if m.Version == 1 {
				text, html := parts(t, filepath.Join(b.Pickup, m.File))
				require.Contains(t, text, "9.00")
				require.Contains(t, html, "9.00")
				require.Contains(t, html, "Green tea")
			}
		}
	})
}

// parts returns the decoded text and HTML bodies of a mail.
func parts(t *testing.T, path string) (text, html string) {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	message, err := mail.ReadMessage(f)
	require.NoError(t, err)
	kind, params, err := mime.ParseMediaType(message.Header.Get("Content-Type"))
	require.NoError(t, err)
	require.Equal(t, "multipart/alternative", kind)
	reader := multipart.NewReader(message.Body, params["boundary"])
	for {
		part, err := reader.NextRawPart()
		if err == io.EOF {
			return text, html
		}
		require.NoError(t, err)
		body, err := io.ReadAll(quotedprintable.NewReader(part))
		require.NoError(t, err)
		if strings.HasPrefix(part.Header.Get("Content-Type"), "text/html") {
			html = string(body)
		} else {
			text = string(body)
		}
	}
}

func TestIdempotentRetry(t *testing.T) {
	eachShape(t, func(t *testing.T, line e2e.Line) {
		b := begin(t, line)
		ids := make([]string, 50)
		var group errgroup.Group
		for i := range ids {
			group.Go(func() error {
				o, err := b.client.PlaceWithKey(b.ctx, "web-1001", e2e.Body("ada@example.com", "JPY", 1, "1500"))
				ids[i] = o.ID
				return err
			})
		}
		require.NoError(t, group.Wait())
		for _, id := range ids {
			require.Equal(t, ids[0], id)
		}
		_, err := b.client.PlaceWithKey(b.ctx, "web-1001", e2e.Body("eve@example.com", "JPY", 1, "1500"))
		var refused *e2e.Refused
		require.ErrorAs(t, err, &refused)
		require.Equal(t, 422, refused.Status)
		b.conserved(t)
	})
}

// TestLargestOrderGetsAllItsEffects: what the store accepts, every service can
// handle; one more is refused at the door.
func TestLargestOrderGetsAllItsEffects(t *testing.T) {
	eachShape(t, func(t *testing.T, line e2e.Line) {
		b := begin(t, line)
		for currency, price := range map[string]string{"JPY": "1000000000", "BHD": "1000000000.000"} {
			_, err := b.client.Place(b.ctx, e2e.Body("whale-"+strings.ToLower(currency)+"@example.com", currency, 1_000_000, price))
			require.NoError(t, err)
		}
		_, err := b.client.Place(b.ctx, e2e.Body("whale@example.com", "JPY", 1_000_000, "1000000001"))
		var refused *e2e.Refused
		require.ErrorAs(t, err, &refused)
		require.Equal(t, 422, refused.Status)
		b.conserved(t)
	})
}

func TestThousandOrdersBySixteenClients(t *testing.T) {
	eachShape(t, func(t *testing.T, line e2e.Line) {
		b := begin(t, line)
		var group errgroup.Group
		group.SetLimit(16)
		for i := range 1000 {
			group.Go(func() error {
				customer := fmt.Sprintf("customer%d@example.com", i%37)
				_, err := b.client.Place(b.ctx, e2e.Body(customer, "EUR", 1+i%5, fmt.Sprintf("%d.99", i%20)))
				return err
			})
		}
		require.NoError(t, group.Wait())
		require.Equal(t, 1000, b.truth.Count())
		b.conserved(t)
	})
}

func TestChangesOfManyOrdersAppearInOrder(t *testing.T) {
	eachShape(t, func(t *testing.T, line e2e.Line) {
		b := begin(t, line)
		group, ctx := errgroup.WithContext(b.ctx)
		for i := range 50 {
			group.Go(func() error {
				o, err := b.client.Place(ctx, e2e.Body(fmt.Sprintf("c%d@example.com", i%7), "BHD", 1, "1.250"))
				for n := 0; err == nil && n < 20; n++ {
					o, err = b.client.Change(ctx, o, 2+n, "1.250")
				}
				return err
			})
		}
		require.NoError(t, group.Wait())
		require.Equal(t, 50*21, b.truth.Count())
		b.conserved(t)
	})
}

// requireLedgerInOrder checks that each order's ledger rows came in version
// order; the audit log knows which event is which version.
func requireLedgerInOrder(t *testing.T, b *bench) {
	t.Helper()
	entries, err := b.AuditEntries(b.ctx, "")
	require.NoError(t, err)
	versions := map[string]int64{}
	for _, e := range entries {
		versions[e.EventID] = e.Version
	}
	for customer := range b.truth.Balances() {
		ledger, err := b.Ledger(b.ctx, customer)
		require.NoError(t, err)
		last := map[string]int64{}
		for _, row := range ledger {
			require.Equal(t, last[row.Order]+1, versions[row.EventID], "order %s in the ledger of %s", row.Order, customer)
			last[row.Order]++
		}
	}
}

func TestOneOrderWithTwoHundredChanges(t *testing.T) {
	eachShape(t, func(t *testing.T, line e2e.Line) {
		b := begin(t, line)
		o, err := b.client.Place(b.ctx, e2e.Body("ada@example.com", "EUR", 1, "1.00"))
		require.NoError(t, err)
		for n := range 200 {
			o, err = b.client.Change(b.ctx, o, 2+n, "1.00")
			require.NoError(t, err)
		}
		last := time.Now()
		b.conserved(t)
		t.Logf("all effects of 201 versions %s after the last answer", time.Since(last).Round(time.Millisecond))
	})
}
