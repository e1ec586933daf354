package letter_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/mailer/internal/letter"
	"github.com/pillarbox/pillarbox/services/mailer/internal/lettertest"
	"github.com/pillarbox/pillarbox/shared/events"
)

func request(t testing.TB, m events.MailRequest) events.Event {
	t.Helper()
	e, err := events.NewMailRequested("01980a5e-9c3c-7abc-9def-00112233aabb", "/shop/news",
		time.Date(2026, 3, 14, 9, 26, 53, 0, time.UTC), m)
	require.NoError(t, err)
	return e
}

func TestRequestedMailsAreWhatWasAskedFor(t *testing.T) {
	t.Parallel()
	full := events.MailRequest{
		Sender:     events.Mailbox{Email: "news@shop.example", Name: "Shop & Söhne, GmbH"},
		Recipients: []events.Mailbox{{Email: "ada@example.com", Name: "Ada"}, {Email: "bob@example.org"}},
		Subject:    "Grüße =?utf-8?q?x?= 🍵", Text: "Hällo\n.\nFrom here\n", HTML: "<p>Hällo &amp; mehr</p>\n",
	}
	plain, markup, crowd := full, full, full
	plain.HTML, markup.Text = "", ""
	plain.Subject = strings.Repeat("word", events.MaxMailSubject/4) // no place to fold
	markup.Subject = strings.Repeat("🍵", events.MaxMailSubject)
	markup.HTML = "<p>" + strings.Repeat("x", 5000) + "\r bare\x09\n</p>"
	crowd.Recipients = nil
	for i := range events.MaxRecipients {
		crowd.Recipients = append(crowd.Recipients, events.Mailbox{Email: fmt.Sprintf("user%d@example.com", i), Name: strings.Repeat("ü", events.MaxMailName)})
	}
	for name, m := range map[string]events.MailRequest{"full": full, "plain": plain, "markup": markup, "crowd": crowd} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := request(t, m)
			l, err := renderer(t).Render(e)
			require.NoError(t, err)
			require.Equal(t, m.Sender.Email, l.Sender)
			require.Len(t, l.Recipients, len(m.Recipients))
			require.Equal(t, e.ID, l.OrderID)
			again, err := renderer(t).Render(e)
			require.NoError(t, err)
			require.Equal(t, l, again)

			dir := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(dir, l.Delivery+".eml"), l.Data, 0o600))
			got := lettertest.Judge(t, dir)[0]
			require.Equal(t, e.ID, got.Event)
			require.Empty(t, got.Order)
			require.Equal(t, m.Sender.Email, got.From)
			require.Equal(t, m.Recipients[0].Email, got.To)
			require.Len(t, got.Others, len(m.Recipients)-1)
			// A long word is folded right after the header's name; the judge keeps that space, readers do not.
			require.Equal(t, strings.ReplaceAll(m.Subject, "=?", "= ?"), strings.TrimSpace(got.Subject))
			require.Equal(t, lines(m.Text), lines(got.Text))
			require.Equal(t, lines(m.HTML), lines(got.HTML))
		})
	}
}

// lines makes line ends alike.
func lines(s string) string {
	return strings.ReplaceAll(strings.ReplaceAll(s, "\r\n", "\n"), "\r", "\n")
}

func TestARequestOfAnotherShapeIsUnsendable(t *testing.T) {
	t.Parallel()
	e := request(t, events.MailRequest{
		Sender: events.Mailbox{Email: "a@example.com"}, Recipients: []events.Mailbox{{Email: "b@example.com"}}, Subject: "s", Text: "t",
	})
	e.Data = []byte(`{"sender":{"email":"a@example.com"},"recipients":[{"email":"b@example.com\r\nRCPT TO:<c@example.com>"}],"subject":"s","text":"t"}`)
	_, err := renderer(t).Render(e)
	require.ErrorIs(t, err, letter.ErrUnsendable)
}

func BenchmarkRenderHalfAMegabyte(b *testing.B) {
	r, e := renderer(b), request(b, events.MailRequest{
		Sender: events.Mailbox{Email: "a@example.com"}, Recipients: []events.Mailbox{{Email: "b@example.com"}}, Subject: "s",
		HTML: strings.Repeat("<p class=\"x\">All that is gold does not glitter.</p>\n", 512<<10/53),
	})
	b.ReportAllocs()
	for b.Loop() {
		_, err := r.Render(e)
		require.NoError(b, err)
	}
}
