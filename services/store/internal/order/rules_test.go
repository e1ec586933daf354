package order_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/store/internal/order"
)

var noon = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

func tea() order.Draft {
	return order.Draft{
		Customer: order.Customer{Email: "ada@example.com", Name: "Ada Lovelace", Locale: "en"}, Currency: "EUR",
		Items: []order.DraftItem{{SKU: "TEA-01", Name: "Green tea", Quantity: 2, UnitPrice: "4.5"}}, Reference: "web-1001",
	}
}

func placed(t *testing.T) order.Order {
	t.Helper()
	p, broken := order.CheckDraft(tea())
	require.Empty(t, broken)
	return p.Order("id", noon)
}

func pointers(broken []order.Violation) []string {
	var all []string
	for _, v := range broken {
		all = append(all, v.Pointer)
	}
	return all
}

func TestPlacement(t *testing.T) {
	t.Parallel()
	require.Equal(t, order.Order{
		ID: "id", Version: 1, Status: order.Placed, Currency: "EUR", Reference: "web-1001",
		Customer: order.Customer{Email: "ada@example.com", Name: "Ada Lovelace", Locale: "en"},
		Items: []order.Item{{
			SKU: "TEA-01", Name: "Green tea", Quantity: 2, UnitPrice: order.Amount{Minor: 450, Decimals: 2},
		}},
		Total: order.Amount{Minor: 900, Decimals: 2}, PlacedAt: noon, UpdatedAt: noon,
	}, placed(t))
}

func TestEveryBrokenRuleIsNamed(t *testing.T) {
	t.Parallel()
	_, broken := order.CheckDraft(order.Draft{
		Customer: order.Customer{Email: "x", Name: "\x00", Locale: "!"}, Currency: "nope", Reference: "\n",
		Items: []order.DraftItem{{}, {SKU: "\t", Quantity: 1, UnitPrice: "1.23456"}, {SKU: "B", Quantity: 1, UnitPrice: "-1"}},
	})
	require.Equal(t, []string{
		"/customer/email", "/customer/name", "/customer/locale", "/reference", "/currency",
		"/items/0/sku", "/items/0/quantity", "/items/0/unit_price", "/items/1/sku", "/items/2/unit_price",
	}, pointers(broken))
}

func TestLimitsCountCharacters(t *testing.T) {
	t.Parallel()
	d := tea()
	d.Customer.Name, d.Reference = strings.Repeat("😀", 200), strings.Repeat("ß", 200)
	d.Items[0].SKU, d.Items[0].Name = strings.Repeat("😀", 64), strings.Repeat("e\u0301", 100)
	d.Items[0].Quantity, d.Items[0].UnitPrice = order.MaxQuantity, "0"
	for len(d.Items) < order.MaxItems {
		d.Items = append(d.Items, d.Items[0])
	}
	_, broken := order.CheckDraft(d)
	require.Empty(t, broken)
}

func TestRevise(t *testing.T) {
	t.Parallel()
	o := placed(t)
	name := "Ada L."
	r, broken := order.CheckRevision(order.RevisionDraft{CustomerName: &name}, 2)
	require.Empty(t, broken)
	revised, changed, err := o.Revise(r, noon.Add(-time.Hour))
	require.NoError(t, err)
	require.True(t, changed)
	require.Equal(t, noon, revised.UpdatedAt, "time does not run backwards with the clock")
	require.EqualValues(t, 2, revised.Version)
	require.Equal(t, name, revised.Customer.Name)
	require.Equal(t, o.Items, revised.Items)
	require.Equal(t, "Ada Lovelace", o.Customer.Name, "the old order stays as it was")

	again, changed, err := revised.Revise(r, noon.Add(time.Hour))
	require.NoError(t, err)
	require.False(t, changed)
	require.Equal(t, revised, again)

	same, broken := order.CheckRevision(order.RevisionDraft{Items: &[]order.DraftItem{{
		SKU: "TEA-01", Name: "Green tea", Quantity: 2, UnitPrice: "4.50",
	}}}, 2)
	require.Empty(t, broken)
	_, changed, err = o.Revise(same, noon)
	require.NoError(t, err)
	require.False(t, changed)
}

func TestRevisionRules(t *testing.T) {
	t.Parallel()
	name := "\x1b"
	_, broken := order.CheckRevision(order.RevisionDraft{CustomerName: &name, Items: &[]order.DraftItem{}}, 2)
	require.Equal(t, []string{"/customer/name", "/items"}, pointers(broken))
	_, broken = order.CheckRevision(order.RevisionDraft{Items: &[]order.DraftItem{{SKU: "A", Quantity: 1, UnitPrice: "0.5"}}}, 0)
	require.Equal(t, []string{"/items/0/unit_price"}, pointers(broken))
}

func TestCancelIsFinal(t *testing.T) {
	t.Parallel()
	cancelled, changed := placed(t).Cancel(noon.Add(time.Minute))
	require.True(t, changed)
	require.Equal(t, order.Cancelled, cancelled.Status)
	require.EqualValues(t, 2, cancelled.Version)
	require.Equal(t, noon.Add(time.Minute), cancelled.UpdatedAt)
	again, changed := cancelled.Cancel(noon.Add(time.Hour))
	require.False(t, changed)
	require.Equal(t, cancelled, again)
	_, _, err := cancelled.Revise(order.Revision{}, noon)
	require.ErrorIs(t, err, order.ErrCancelled)
}

func TestAddresses(t *testing.T) {
	t.Parallel()
	label := strings.Repeat("d", 63)
	check := func(address string) []string {
		d := tea()
		d.Customer.Email = address
		_, broken := order.CheckDraft(d)
		return pointers(broken)
	}
	for _, good := range []string{
		"a@b.co", "ada.lovelace+tea@mail.example.com", "!#$%&'*+-/=?^_`{|}~@example.com", "1@2.c3", "A@B.EXAMPLE",
		strings.Repeat("l", 64) + "@example.com", "x@xn--mnchen-3ya.de", "x@" + label + ".example", "x@a-b.c--d.example",
	} {
		require.Empty(t, check(good), good)
	}
	for _, bad := range []string{
		"", "ada", "@example.com", "ada@", "ada@example", "a@b@c.example", ".ada@example.com", "ada.@example.com", "a..b@example.com",
		"ada@.com", "ada@example..com", "ada@example.com.", "ada@-a.com", "ada@a-.com", "ada@a_b.com", "ada@1.2.3.4", "ada@[127.0.0.1]",
		`"ada"@example.com`, `"a b"@example.com`, "Ada <ada@example.com>", "<ada@example.com>", "ada(comment)@example.com",
		"group:a@example.com;", "a@example.com,b@example.com", "ada @example.com", " ada@example.com", "ada@example.com ", "ada@exa mple.com",
		"ada@example.com\r\nBcc: b@example.com", "ada\x00@example.com", "ada@example.com\n", "ädä@example.com", "ada@münchen.de",
		strings.Repeat("l", 65) + "@example.com", "x@" + label + "d.example",
		"x@" + strings.Repeat(label+".", 4) + "example", `a\@b@example.com`, "a@b.c;d", "a@b.c/d",
	} {
		require.Equal(t, []string{"/customer/email"}, check(bad), "%q", bad)
	}
}

func TestLocales(t *testing.T) {
	t.Parallel()
	for tag, good := range map[string]bool{
		"": true, "en": true, "de-AT": true, "zh-Hant-TW": true, "sr-Latn": true, "es-419": true, "qq": true, "en-x-shop": true,
		"e": false, "en_US": false, "en-": false, "-en": false, "en--US": false, "english language": false, "en-US;q=1": false,
		"ën": false, "*": false, strings.Repeat("en-x-", 10): false, "../../etc": false,
	} {
		d := tea()
		d.Customer.Locale = tag
		_, broken := order.CheckDraft(d)
		require.Equal(t, good, len(broken) == 0, "%q", tag)
	}
}
