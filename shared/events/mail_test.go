package events_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/shared/events"
)

const mailID = "01932c3e-7b1c-7000-8000-000000000001"

func request() events.MailRequest {
	return events.MailRequest{
		Sender:     events.Mailbox{Email: "news@shop.example", Name: "Shop & Söhne"},
		Recipients: []events.Mailbox{{Email: "ada@example.com", Name: "Ada <Lovelace>"}, {Email: "bob@example.org"}},
		Subject:    "Größe <b>", Text: "Hällo\r\n", HTML: "<p>Hällo &amp; mehr</p>",
	}
}

var mailTime = time.Date(2026, 11, 30, 11, 0, 0, 123456000, time.UTC)

func requested(t *testing.T, m events.MailRequest) events.Event {
	t.Helper()
	e, err := events.NewMailRequested(mailID, "/shop/news", mailTime, m)
	require.NoError(t, err)
	return e
}

func TestMailRequestGolden(t *testing.T) {
	t.Parallel()
	e := requested(t, request())
	require.False(t, e.OfOrder())
	require.Equal(t, e.ID, e.Subject)
	got, err := e.Encode()
	require.NoError(t, err)
	path := filepath.Join("testdata", events.TypeMailRequested+".json")
	if _, err := os.Stat(path); *update && os.IsNotExist(err) {
		require.NoError(t, os.WriteFile(path, append(got, '\n'), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, strings.TrimSpace(string(want)), string(got))
	require.Contains(t, string(got), "<p>", "markup is not escaped: a large body must not grow")

	back, err := events.Decode(want)
	require.NoError(t, err)
	body, err := back.MailRequest()
	require.NoError(t, err)
	require.Equal(t, request(), body)
	_, err = back.Order()
	require.ErrorIs(t, err, events.ErrInvalid)
	_, err = event(t, events.TypePlaced, order(1, "placed")).MailRequest()
	require.ErrorIs(t, err, events.ErrInvalid)
}

func TestMailRequestOfHalfAMegabyteFits(t *testing.T) {
	t.Parallel()
	m := request()
	m.HTML = strings.Repeat(`<p class="x">Hällo</p>`+"\n", 512<<10/24)
	raw, err := requested(t, m).Encode()
	require.NoError(t, err)
	require.LessOrEqual(t, len(raw), events.MaxSize)

	m.HTML = strings.Repeat("\"\n", events.MaxMailBody/2-100) // each grows to twice its size
	_, err = events.NewMailRequested(mailID, "/shop/news", mailTime, m)
	require.ErrorIs(t, err, events.ErrTooLarge)
}

func TestMailRequestRefuses(t *testing.T) {
	t.Parallel()
	many := make([]events.Mailbox, events.MaxRecipients+1)
	for i := range many {
		many[i].Email = strings.Repeat("a", i%60+1) + "@" + strings.Repeat("b", i/60+1) + ".example"
	}
	for name, change := range map[string]func(*events.MailRequest){
		"no sender":             func(m *events.MailRequest) { m.Sender.Email = "" },
		"sender with a name":    func(m *events.MailRequest) { m.Sender.Email = "Shop <shop@example.com>" },
		"sender name splits":    func(m *events.MailRequest) { m.Sender.Name = "Shop\r\nBcc: all@example.com" },
		"no recipients":         func(m *events.MailRequest) { m.Recipients = nil },
		"too many recipients":   func(m *events.MailRequest) { m.Recipients = many },
		"one twice":             func(m *events.MailRequest) { m.Recipients[1].Email = "ada@EXAMPLE.com" },
		"recipient splits":      func(m *events.MailRequest) { m.Recipients[1].Email = "a@example.com>\r\nRCPT TO:<b@example.com" },
		"recipient is a list":   func(m *events.MailRequest) { m.Recipients[1].Email = "a@example.com,b@example.com" },
		"recipient is a group":  func(m *events.MailRequest) { m.Recipients[1].Email = "g:a@example.com;" },
		"comment":               func(m *events.MailRequest) { m.Recipients[1].Email = "a(x)@example.com" },
		"quoted":                func(m *events.MailRequest) { m.Recipients[1].Email = `"a b"@example.com` },
		"not ASCII":             func(m *events.MailRequest) { m.Recipients[1].Email = "ä@example.com" },
		"long local part":       func(m *events.MailRequest) { m.Recipients[1].Email = strings.Repeat("a", 65) + "@example.com" },
		"literal":               func(m *events.MailRequest) { m.Recipients[1].Email = "a@[127.0.0.1]" },
		"hyphen":                func(m *events.MailRequest) { m.Recipients[1].Email = "a@-x.com" },
		"recipient name splits": func(m *events.MailRequest) { m.Recipients[1].Name = "a\nb" },
		"recipient name long":   func(m *events.MailRequest) { m.Recipients[1].Name = strings.Repeat("ä", events.MaxMailName+1) },
		"no subject":            func(m *events.MailRequest) { m.Subject = " " },
		"subject splits":        func(m *events.MailRequest) { m.Subject = "Hi\r\nBcc: all@example.com" },
		"subject long":          func(m *events.MailRequest) { m.Subject = strings.Repeat("s", events.MaxMailSubject+1) },
		"no body":               func(m *events.MailRequest) { m.Text, m.HTML = "", "" },
		"NUL":                   func(m *events.MailRequest) { m.Text = "a\x00b" },
		"large":                 func(m *events.MailRequest) { m.Text = strings.Repeat("a", events.MaxMailBody) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := request()
			change(&m)
			_, err := events.NewMailRequested(mailID, "/shop/news", mailTime, m)
			require.ErrorIs(t, err, events.ErrInvalid)

			// The same from a stranger's hand.
			e := requested(t, request())
			e.Data, err = json.Marshal(m)
			require.NoError(t, err)
			raw, err := e.Encode()
			require.NoError(t, err)
			_, err = events.Decode(raw)
			require.ErrorIs(t, err, events.ErrInvalid)
			require.Less(t, len(err.Error()), 300)
		})
	}
	for name, change := range map[string]func(*events.Event){
		"subject of its own": func(e *events.Event) { e.Subject = "another" },
		"version":            func(e *events.Event) { e.Version = 2 },
	} {
		e := requested(t, request())
		change(&e)
		_, err := e.Encode()
		require.ErrorIs(t, err, events.ErrInvalid, name)
	}
}
