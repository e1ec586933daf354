package letter

import (
	"bytes"
	"fmt"
	"io"
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

// message writes the mail to out. Everything that the library would take from the
// clock, the host or a random source is set: Date, Message-ID, boundary, and no
// User-Agent. Bodies are always quoted-printable, since unencoded ones would
// pass bare carriage returns and lines over 998 octets.
func message(out *bytes.Buffer, e events.Event, l Letter, c content) error {
	for _, id := range []string{e.ID, e.Subject} {
		if id == "" || len(id) > 64 || strings.IndexFunc(id, func(c rune) bool { return c <= ' ' || c > '~' }) >= 0 {
			return fmt.Errorf("id is not 1 to 64 printable ASCII characters")
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
	setBodies(m, c.parts, out)
	// Most bodies grow by a few per cent in quoted-printable; a buffer that doubles its way up copies them again and again.
	out.Grow((len(c.parts.Text)+len(c.parts.HTML))*9/8 + 4<<10)
	if _, err := m.WriteTo(out); err != nil {
		return fmt.Errorf("write message: %w", err)
	}
	return nil
}

// setBodies sets the bodies that are there; two are alternatives, the plain one first.
func setBodies(m *gomail.Msg, p parts, out *bytes.Buffer) {
	switch {
	case p.Text == "":
		m.SetBodyWriter(gomail.TypeTextHTML, body(p.HTML, out))
	case p.HTML == "":
		m.SetBodyWriter(gomail.TypeTextPlain, body(p.Text, out))
	default:
		m.SetBodyWriter(gomail.TypeTextPlain, body(p.Text, out))
		m.AddAlternativeWriter(gomail.TypeTextHTML, body(p.HTML, out))
	}
}

// body writes text straight to out, to which the library has written the header before it asks for the body. Its own writer,
// which goes unused, would encode the same into a buffer that grows and is then copied.
func body(text string, out *bytes.Buffer) func(io.Writer) (int64, error) {
	return func(io.Writer) (int64, error) {
		_, err := out.Write(appendQuoted(out.AvailableBuffer(), text))
		return 0, err
	}
}
