package events

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// TypeMailRequested asks the mailer for one mail. It belongs to no order: its subject is its own id and
// its version is 1, so that consumers that keep an order per subject treat each as an order of one event.
const TypeMailRequested = "mail.requested.v1"

// Limits of a mail request. All of it, encoded, must also fit MaxSize.
const (
	MaxRecipients  = 100
	MaxMailSubject = 255     // characters
	MaxMailName    = 200     // characters of a name before an address
	MaxMailBody    = 768_000 // bytes of both bodies together
)

// ErrTooLarge: an event is larger than MaxSize when encoded.
var ErrTooLarge = errors.New("event is too large")

// Mailbox is an address with the name that stands before it.
type Mailbox struct {
	Email string `json:"email"`
	Name  string `json:"name,omitempty"`
}

// MailRequest is the body of TypeMailRequested.
type MailRequest struct {
	Sender     Mailbox   `json:"sender"`
	Recipients []Mailbox `json:"recipients"` // 1 to MaxRecipients, each address once
	Subject    string    `json:"subject"`
	Text       string    `json:"text,omitempty"` // at least one of the two bodies
	HTML       string    `json:"html,omitempty"`
}

// NewMailRequested returns the event with which a source asks for a mail. Its errors wrap ErrInvalid or ErrTooLarge.
func NewMailRequested(id, source string, at time.Time, m MailRequest) (Event, error) {
	var data bytes.Buffer
	enc := json.NewEncoder(&data)
	enc.SetEscapeHTML(false) // a body of tags would grow several times
	if err := enc.Encode(m); err != nil {
		return Event{}, fmt.Errorf("encode mail request: %w", err)
	}
	e := Event{
		ID: id, Source: source, Type: TypeMailRequested, Time: at.UTC(), Subject: id, Version: 1,
		Data: bytes.TrimSuffix(data.Bytes(), []byte("\n")),
	}
	if err := m.check(); err != nil {
		return Event{}, err
	}
	raw, err := e.Encode()
	if err != nil {
		return Event{}, err
	}
	if len(raw) > MaxSize {
		return Event{}, fmt.Errorf("%w: %d bytes, the most is %d", ErrTooLarge, len(raw), MaxSize)
	}
	return e, nil
}

// OfOrder reports whether e is about an order.
func (e Event) OfOrder() bool { return isOrderType(e.Type) }

func isOrderType(kind string) bool {
	return kind == TypePlaced || kind == TypeChanged || kind == TypeCancelled
}

// MailRequest returns the body of a TypeMailRequested, which callers share and must not change. Its errors
// wrap ErrInvalid.
func (e Event) MailRequest() (MailRequest, error) {
	var m MailRequest
	if e.Type != TypeMailRequested {
		return MailRequest{}, invalid("type %q is not %s", clip(e.Type), TypeMailRequested)
	}
	if parsed, ok := e.parsed.(MailRequest); ok {
		return parsed, nil
	}
	if err := json.Unmarshal(e.Data, &m); err != nil {
		return MailRequest{}, invalid("data is not a mail request: %v", err)
	}
	if err := m.check(); err != nil {
		return MailRequest{}, err
	}
	return m, nil
}

func (m MailRequest) check() error {
	if err := m.sound(); err != nil {
		return err
	}
	if strings.ContainsFunc(m.Text, forbidden) || strings.ContainsFunc(m.HTML, forbidden) {
		return invalid("data.text or data.html has control characters")
	}
	return nil
}

// sound is check without a look at the characters of the bodies.
func (m MailRequest) sound() error {
	if err := m.Sender.check("sender"); err != nil {
		return err
	}
	if len(m.Recipients) < 1 || len(m.Recipients) > MaxRecipients {
		return invalid("data.recipients has %d entries, not 1 to %d", len(m.Recipients), MaxRecipients)
	}
	seen := make(map[string]bool, len(m.Recipients))
	for i, r := range m.Recipients {
		where := fmt.Sprintf("recipients[%d]", i)
		if err := r.check(where); err != nil {
			return err
		}
		local, domain, _ := strings.Cut(r.Email, "@")
		key := local + "@" + strings.ToLower(domain)
		if seen[key] {
			return invalid("data.%s.email is there twice", where)
		}
		seen[key] = true
	}
	if strings.TrimSpace(m.Subject) == "" {
		return invalid("data.subject is missing")
	}
	if err := checkLine("subject", m.Subject, MaxMailSubject); err != nil {
		return err
	}
	switch {
	case m.Text == "" && m.HTML == "":
		return invalid("data.text and data.html are both missing")
	case len(m.Text)+len(m.HTML) > MaxMailBody:
		return invalid("data.text and data.html have more than %d bytes", MaxMailBody)
	}
	return nil
}

func (m Mailbox) check(where string) error {
	if !IsMailAddress(m.Email) {
		return invalid("data.%s.email is not an address that mail servers take", where)
	}
	return checkLine(where+".name", m.Name, MaxMailName)
}

// checkLine refuses what could end a header line or hide in it.
func checkLine(name, s string, most int) error {
	switch {
	case !utf8.ValidString(s):
		return invalid("data.%s is not UTF-8", name)
	case utf8.RuneCountInString(s) > most:
		return invalid("data.%s has more than %d characters", name, most)
	case strings.ContainsFunc(s, func(r rune) bool { return unicode.IsControl(r) || r == '\u2028' || r == '\u2029' }):
		return invalid("data.%s has control characters", name)
	}
	return nil
}

// forbidden are the characters that no body may have: quoted-printable would carry them, and no reader shows them.
func forbidden(r rune) bool { return unicode.IsControl(r) && r != '\t' && r != '\r' && r != '\n' }

// IsMailAddress reports whether s is a plain address, local@domain, of the kind that every mail server
// takes: ASCII, an unquoted local part of 1 to 64 characters, a domain name of at most 253.
func IsMailAddress(s string) bool {
	local, domain, ok := strings.Cut(s, "@")
	return ok && len(s) <= 254 && isLocalPart(local) && isDomain(domain)
}

func isLocalPart(s string) bool {
	if s == "" || len(s) > 64 {
		return false
	}
	for atom := range strings.SplitSeq(s, ".") {
		if atom == "" || strings.ContainsFunc(atom, func(r rune) bool {
			return !isLetterOrDigit(r) && !strings.ContainsRune("!#$%&'*+-/=?^_`{|}~", r)
		}) {
			return false
		}
	}
	return true
}

func isDomain(s string) bool {
	if s == "" || len(s) > 253 {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' ||
			strings.ContainsFunc(label, func(r rune) bool { return !isLetterOrDigit(r) && r != '-' }) {
			return false
		}
	}
	return true
}

func isLetterOrDigit(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
}
