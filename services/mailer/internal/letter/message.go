package letter

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"

	gomail "github.com/wneessen/go-mail"

	"github.com/pillarbox/pillarbox/shared/events"
)

// Headers by which operators and tests find the event of a mail.
const (
	HeaderEvent   = "X-Pillarbox-Event"
	HeaderOrder   = "X-Pillarbox-Order"
	HeaderVersion = "X-Pillarbox-Version"
)

// message writes the mail. Everything that the library would take from the
// clock, the host or a random source is set: Date, Message-ID, boundary, and no
// User-Agent. Bodies are always quoted-printable, since unencoded ones would
// pass bare carriage returns and lines over 998 octets.
func message(e events.Event, l Letter, c content) ([]byte, error) {
	for _, id := range []string{e.ID, e.Subject} {
		if id == "" || len(id) > 64 || strings.IndexFunc(id, func(c rune) bool { return c <= ' ' || c > '~' }) >= 0 {
			return nil, fmt.Errorf("id is not 1 to 64 printable ASCII characters")
		}
	}
	m := gomail.NewMsg(
		gomail.WithNoDefaultUserAgent(),
		gomail.WithCharset(gomail.CharsetUTF8),
		gomail.WithEncoding(gomail.EncodingQP),
		gomail.WithBoundary("part-"+l.Delivery),
	)
	m.FromMailAddress(c.from)
	m.ToMailAddress(c.to...)
	m.Subject(c.parts.Subject)
	m.SetDateWithValue(e.Time.UTC())
	m.SetMessageIDWithValue(l.MessageID)
	m.SetGenHeader("Auto-Submitted", "auto-generated")
	if c.parts.Language != "" {
		m.SetGenHeader("Content-Language", c.parts.Language)
	}
	m.SetGenHeader(HeaderEvent, e.ID)
	if e.OfOrder() {
		m.SetGenHeader(HeaderOrder, e.Subject)
		m.SetGenHeader(HeaderVersion, strconv.FormatInt(e.Version, 10))
	}
	setBodies(m, c.parts)
	var out bytes.Buffer
	// Most bodies grow by a few per cent in quoted-printable; a buffer that doubles its way up copies them again and again.
	out.Grow((len(c.parts.Text)+len(c.parts.HTML))*9/8 + 4<<10)
	if _, err := m.WriteTo(&out); err != nil {
		return nil, fmt.Errorf("write message: %w", err)
	}
	return out.Bytes(), nil
}

// setBodies sets the bodies that are there; two are alternatives, the plain one first.
func setBodies(m *gomail.Msg, p parts) {
	switch {
	case p.Text == "":
		m.SetBodyString(gomail.TypeTextHTML, p.HTML)
	case p.HTML == "":
		m.SetBodyString(gomail.TypeTextPlain, p.Text)
	default:
		m.SetBodyString(gomail.TypeTextPlain, p.Text)
		m.AddAlternativeString(gomail.TypeTextHTML, p.HTML)
	}
}
