package letter

import (
	"bytes"
	"fmt"
	"net/mail"
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
func (r *Renderer) message(e events.Event, l Letter, to *mail.Address, p parts) ([]byte, error) {
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
	m.FromMailAddress(r.from)
	m.ToMailAddress(to)
	m.Subject(p.Subject)
	m.SetDateWithValue(e.Time.UTC())
	m.SetMessageIDWithValue(l.MessageID)
	m.SetGenHeader("Auto-Submitted", "auto-generated")
	m.SetGenHeader("Content-Language", p.Language)
	m.SetGenHeader(HeaderEvent, e.ID)
	m.SetGenHeader(HeaderOrder, e.Subject)
	m.SetGenHeader(HeaderVersion, strconv.FormatInt(e.Version, 10))
	m.SetBodyString(gomail.TypeTextPlain, p.Text)
	m.AddAlternativeString(gomail.TypeTextHTML, p.HTML)
	var out bytes.Buffer
	if _, err := m.WriteTo(&out); err != nil {
		return nil, fmt.Errorf("write message: %w", err)
	}
	return out.Bytes(), nil
}
