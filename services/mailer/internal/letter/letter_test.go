package letter_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/mailer/internal/letter"
	"github.com/pillarbox/pillarbox/services/mailer/internal/lettertest"
	"github.com/pillarbox/pillarbox/shared/events"
)

var update = flag.Bool("update", false, "write the golden mails anew")

func renderer(t testing.TB) *letter.Renderer {
	t.Helper()
	r, err := letter.New(letter.Config{From: "Pillarbox <orders@pillarbox.invalid>", Domain: "pillarbox.invalid"})
	require.NoError(t, err)
	return r
}

// order is a complete order; tests change what they are about.
func order() events.Order {
	return events.Order{
		ID: "01980a5e-9c3b-7d10-8f2a-5b6c7d8e9f01", Version: 1, Status: "placed",
		Customer: events.Customer{Email: "ada@example.com", Name: "Ada Lovelace", Locale: "en"},
		Currency: "EUR", Total: "13.25", Reference: "web-1001",
		Items: []events.Item{
			{SKU: "TEA-01", Name: "Green tea", Quantity: 2, UnitPrice: "4.50"},
			{SKU: "CUP-07", Quantity: 1, UnitPrice: "4.25"},
		},
		PlacedAt: time.Date(2026, 3, 14, 9, 26, 53, 0, time.UTC),
	}
}

func event(t testing.TB, eventType string, o events.Order) events.Event {
	t.Helper()
	data, err := json.Marshal(o)
	require.NoError(t, err)
	return events.Event{
		ID: "01980a5e-9c3c-7abc-9def-001122334455", Source: events.Source, Type: eventType,
		Time: o.PlacedAt.Add(time.Duration(o.Version-1) * time.Hour), Subject: o.ID, Version: o.Version, Data: data,
	}
}

func TestGoldenMails(t *testing.T) {
	t.Parallel()
	changed := order()
	changed.Version, changed.Total = 2, "4.25"
	changed.Items = changed.Items[1:]
	cancelled := order()
	cancelled.Version, cancelled.Status = 3, "cancelled"
	german := order()
	german.Customer = events.Customer{Email: "juergen@example.de", Name: "Jürgen Müßig", Locale: "de-AT"}
	german.Items[0].Quantity, german.Total = 2000, "9004.25"
	yen := order()
	yen.Customer.Locale, yen.Currency, yen.Total, yen.Reference = "ja", "JPY", "1300", ""
	yen.Items = []events.Item{{SKU: "茶-1", Name: "緑茶 🍵", Quantity: 13, UnitPrice: "100"}}
	hostile := order()
	hostile.Customer.Name = "<script>alert(1)</script>\r\nBcc: all@example.com"
	hostile.Reference = strings.Repeat("ö", 200)
	hostile.Items[0].Name = "</td><img src=x onerror=alert(1)>\r\n.\r\n" + strings.Repeat("long", 400)

	for name, e := range map[string]events.Event{
		"placed": event(t, events.TypePlaced, order()), "changed": event(t, events.TypeChanged, changed),
		"cancelled": event(t, events.TypeCancelled, cancelled), "german": event(t, events.TypePlaced, german),
		"yen": event(t, events.TypePlaced, yen), "hostile": event(t, events.TypePlaced, hostile),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := renderer(t).Render(e)
			require.NoError(t, err)
			path := filepath.Join("testdata", name+".eml")
			if *update {
				require.NoError(t, os.WriteFile(path, got.Data, 0o644))
			}
			want, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, string(want), string(got.Data))
		})
	}
}

func TestAnOutsideParserFindsEverything(t *testing.T) {
	t.Parallel()
	byFile := map[string]lettertest.Mail{}
	for _, m := range lettertest.Judge(t, "testdata") {
		byFile[m.File] = m
		require.Equal(t, []string{
			"auto-submitted", "content-language", "content-type", "date", "from", "message-id", "mime-version", "subject", "to",
			"x-pillarbox-event", "x-pillarbox-order", "x-pillarbox-version",
		}, m.Headers, "no header more: no agent, no host name, nothing injected")
		require.Equal(t, "orders@pillarbox.invalid", m.From)
		require.Equal(t, "auto-generated", m.AutoSubmitted)
		require.Equal(t, order().ID, m.Order)
	}
	require.Len(t, byFile, 6)

	placed := byFile["placed.eml"]
	require.Equal(t, "ada@example.com", placed.To)
	require.Equal(t, "Ada Lovelace", placed.ToName)
	require.Equal(t, "Your order web-1001 is confirmed", placed.Subject)
	require.Equal(t, "2026-03-14T09:26:53+00:00", placed.Date)
	require.EqualValues(t, 1, placed.Version)
	for _, body := range []string{placed.Text, placed.HTML} {
		require.Contains(t, body, "Ada Lovelace")
		require.Contains(t, body, "€13.25")
		require.Contains(t, body, "€9.00", "the amount of two pieces")
		require.Contains(t, body, "CUP-07")
	}
	require.Equal(t, "Your order web-1001 was changed", byFile["changed.eml"].Subject)
	require.Contains(t, byFile["changed.eml"].Text, "Total: €4.25")
	require.NotContains(t, byFile["changed.eml"].Text, "Green tea")
	require.Equal(t, "Your order web-1001 was cancelled", byFile["cancelled.eml"].Subject)
	require.EqualValues(t, 3, byFile["cancelled.eml"].Version)

	require.Equal(t, "Jürgen Müßig", byFile["german.eml"].ToName)
	require.Contains(t, byFile["german.eml"].Text, "€9,004.25", "amounts in the language of the letter, which is English here")
	require.Contains(t, byFile["yen.eml"].Text, "¥1,300")
	require.Contains(t, byFile["yen.eml"].Text, "緑茶 🍵")
	require.Equal(t, "Your order 7d8e9f01 is confirmed", byFile["yen.eml"].Subject, "without a reference the end of the id")

	hostile := byFile["hostile.eml"]
	require.Equal(t, "<script>alert(1)</script> Bcc: all@example.com", hostile.ToName)
	require.NotContains(t, hostile.HTML, "<script")
	require.NotContains(t, hostile.HTML, "<img")
	require.Contains(t, hostile.HTML, "&lt;script&gt;")
	require.NotContains(t, hostile.Text, "\n.\n")
	require.Less(t, len(hostile.Subject), 150)
}

func TestTheSameEventGivesTheSameBytes(t *testing.T) {
	t.Parallel()
	e := event(t, events.TypePlaced, order())
	first, err := renderer(t).Render(e)
	require.NoError(t, err)
	second, err := renderer(t).Render(e)
	require.NoError(t, err)
	require.Equal(t, first, second)
	require.Equal(t, first.Delivery+"@pillarbox.invalid", first.MessageID)

	e.ID = "another"
	third, err := renderer(t).Render(e)
	require.NoError(t, err)
	require.NotEqual(t, first.Delivery, third.Delivery)
}

func TestDeliveryIDsAreSafeNamesInVersionOrder(t *testing.T) {
	t.Parallel()
	r, last := renderer(t), ""
	for version := range int64(30) {
		o := order()
		o.Version = version + 1
		e := event(t, events.TypeChanged, o)
		e.Time = o.PlacedAt // all in one millisecond
		e.ID = "../../" + strings.Repeat("/.", 20) + string(rune('a'+version))
		l, err := r.Render(e)
		require.NoError(t, err)
		_, err = uuid.Parse(l.Delivery)
		require.NoError(t, err)
		require.Greater(t, l.Delivery, last, "a reader that takes files by name keeps the order")
		last = l.Delivery
	}
	for _, at := range []time.Time{time.Date(1, 1, 1, 0, 0, 0, 1, time.UTC), time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)} {
		e := event(t, events.TypePlaced, order())
		e.Time = at
		l, err := r.Render(e)
		require.NoError(t, err)
		_, err = uuid.Parse(l.Delivery)
		require.NoError(t, err)
	}
}

func TestWhatCannotBeSentSaysSo(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*events.Event, *events.Order){
		"address with a name":     func(_ *events.Event, o *events.Order) { o.Customer.Email = "Ada <ada@example.com>" },
		"two addresses":           func(_ *events.Event, o *events.Order) { o.Customer.Email = "a@example.com, b@example.com" },
		"no address":              func(_ *events.Event, o *events.Order) { o.Customer.Email = "nobody" },
		"address with line break": func(_ *events.Event, o *events.Order) { o.Customer.Email = "a@example.com\r\nBcc: b@example.com" },
		"address outside ASCII":   func(_ *events.Event, o *events.Order) { o.Customer.Email = "jürgen@example.com" },
		"long local part":         func(_ *events.Event, o *events.Order) { o.Customer.Email = strings.Repeat("a", 65) + "@example.com" },
		"total is no number":      func(_ *events.Event, o *events.Order) { o.Total = "nine" },
		"total with exponent":     func(_ *events.Event, o *events.Order) { o.Total = "1e999999999" },
		"price with exponent":     func(_ *events.Event, o *events.Order) { o.Items[0].UnitPrice = "1e999999999" },
		"unknown type":            func(e *events.Event, _ *events.Order) { e.Type = "order.shipped.v1" },
		"event id with a space":   func(e *events.Event, _ *events.Order) { e.ID = "a b" },
		"event id of two lines":   func(e *events.Event, _ *events.Order) { e.ID = "a\r\nBcc:b@example.com" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := order()
			e := event(t, events.TypePlaced, o)
			spoil(&e, &o)
			data, err := json.Marshal(o)
			require.NoError(t, err)
			e.Data = data
			_, err = renderer(t).Render(e)
			require.ErrorIs(t, err, letter.ErrUnsendable)
			require.NotContains(t, err.Error(), "@", "an error is logged, and addresses are not")
		})
	}
	_, err := renderer(t).Render(events.Event{Type: events.TypePlaced, Data: json.RawMessage(`{`)})
	require.ErrorIs(t, err, letter.ErrUnsendable)
	require.ErrorIs(t, err, events.ErrInvalid)
}

func TestUnknownCurrencyAndLocaleStillGiveAMail(t *testing.T) {
	t.Parallel()
	o := order()
	o.Currency, o.Customer.Locale = "ZZZ", "xx-Yyyy-ZZ"
	l, err := renderer(t).Render(event(t, events.TypePlaced, o))
	require.NoError(t, err)
	require.True(t, bytes.Contains(l.Data, []byte("Total: 13.25 ZZZ")))
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	for _, c := range []letter.Config{
		{From: "", Domain: "example.com"},
		{From: "a@example.com, b@example.com", Domain: "example.com"},
		{From: "a@example.com", Domain: ""},
		{From: "a@example.com", Domain: "exa mple.com"},
		{From: "a@example.com", Domain: "example..com"},
		{From: "a@example.com", Domain: "example.com>\r\nBcc: x"},
	} {
		_, err := letter.New(c)
		require.Error(t, err, c)
	}
}
