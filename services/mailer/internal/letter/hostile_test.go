package letter_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"mime"
	"net/mail"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pillarbox/pillarbox/services/mailer/internal/lettertest"
	"github.com/pillarbox/pillarbox/shared/events"
)

// nasty are pieces that break careless mail writers.
func nasty() []string {
	return []string{
		"\r\nBcc: x@example.com\r\n", "\n", "\r", "\x00", "\t", "\"", "\\", "<b>", "&amp;", "{{.}}", "=?utf-8?q?x?=", "=0D=0A",
		"(comment)", ",", ";", ":", "<a@example.com>", "@", "ä", "漢字", "🍵", "\u202e", "\u2028", "\ufeff", "e\u0301",
		strings.Repeat("x", 90), strings.Repeat("é", 60), strings.Repeat("长", 80), "  ", "--part-", ".", "From ", "a b",
	}
}

// checkMail is what must hold for every mail, whatever the event contains.
func checkMail(t require.TestingT, data []byte) {
	require.NotContains(t, string(bytes.ReplaceAll(data, []byte("\r\n"), nil)), "\r")
	require.NotContains(t, string(bytes.ReplaceAll(data, []byte("\r\n"), nil)), "\n")
	for line := range bytes.SplitSeq(data, []byte("\r\n")) {
		require.LessOrEqual(t, len(line), 998)
	}
	require.True(t, utf8.Valid(data))
	parsed, err := mail.ReadMessage(bytes.NewReader(data))
	require.NoError(t, err)
	require.Len(t, parsed.Header, 12, "no header was injected")
	for name, values := range parsed.Header {
		require.Len(t, values, 1, name)
	}
	to, err := parsed.Header.AddressList("To")
	require.NoError(t, err)
	require.Len(t, to, 1)
	require.Equal(t, "ada@example.com", to[0].Address)
	_, err = new(mime.WordDecoder).DecodeHeader(parsed.Header.Get("Subject"))
	require.NoError(t, err)
	head, _, _ := bytes.Cut(data, []byte("\r\n\r\n"))
	for line := range bytes.SplitSeq(head, []byte("\r\n")) {
		require.NotEmpty(t, bytes.TrimSpace(line), "a folded line of nothing but space")
	}
}

func TestHostileTextStaysText(t *testing.T) {
	t.Parallel()
	folder, r, count := t.TempDir(), renderer(t), 0
	text := rapid.Custom(func(t *rapid.T) string {
		return strings.Join(rapid.SliceOfN(rapid.SampledFrom(nasty()), 0, 8).Draw(t, "pieces"), "")
	})
	rapid.Check(t, func(rt *rapid.T) {
		o := order()
		o.Customer.Name = text.Draw(rt, "name")
		o.Customer.Locale = text.Draw(rt, "locale")
		o.Reference = text.Draw(rt, "reference")
		o.Items[0].Name, o.Items[0].SKU = text.Draw(rt, "item"), text.Draw(rt, "sku")
		kind := rapid.SampledFrom([]string{events.TypePlaced, events.TypeChanged, events.TypeCancelled}).Draw(rt, "type")
		l, err := r.Render(event(t, kind, o))
		require.NoError(rt, err)
		checkMail(rt, l.Data)
		require.NoError(rt, os.WriteFile(filepath.Join(folder, fmt.Sprintf("%04d.eml", count)), l.Data, 0o600))
		count++
	})
	mails := lettertest.Judge(t, folder)
	require.Len(t, mails, count)
	for _, m := range mails {
		require.Equal(t, "ada@example.com", m.To, m.File)
		require.NotContains(t, m.HTML, "<b>", m.File)
		require.Len(t, m.Headers, 12, m.File)
	}
}

func FuzzRender(f *testing.F) {
	for _, piece := range nasty() {
		f.Add(piece, piece, piece, piece)
	}
	f.Add("Ada", "web-1", "Green tea", "4.50")
	f.Fuzz(func(t *testing.T, name, reference, item, price string) {
		o := order()
		o.Customer.Name, o.Reference, o.Items[0].Name, o.Items[0].UnitPrice = name, reference, item, price
		data, err := json.Marshal(o)
		require.NoError(t, err)
		e := event(t, events.TypePlaced, o)
		e.Data = data
		l, err := renderer(t).Render(e)
		if err != nil {
			return // said so
		}
		checkMail(t, l.Data)
	})
}
