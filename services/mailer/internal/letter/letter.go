// Package letter turns an order event into the e-mail about it, and a mail
// request into the e-mail that it asks for.
//
// It promises that the same event always gives the same bytes, that a mail
// never depends on the clock or the machine, and that nothing a customer or a
// shop wrote can become a header, a MIME part or markup. It writes nothing and
// keeps nothing, so a crash leaves nothing behind. It does not promise that the
// address exists.
package letter

import (
	"bytes"
	"errors"
	"fmt"
	"net/mail"
	"strings"

	"github.com/pillarbox/pillarbox/shared/events"
)

// ErrUnsendable is what every error of Render wraps: no mail can be made of
// this event, however often it is tried.
var ErrUnsendable = errors.New("no mail can be made of the event")

// Config of New.
type Config struct {
	From   string // sender, "Name <address>"
	Domain string // right-hand side of Message-IDs
}

// Letter is one mail and the identity of its delivery.
type Letter struct {
	Delivery   string // file name stem, unique per event, first recipient and template
	EventID    string
	OrderID    string // the event's own id when it is about no order
	Version    int64
	Sender     string   // address of the envelope
	Recipients []string // addresses of the envelope: one for an order event, up to events.MaxRecipients for a request
	Template   string
	MessageID  string // without angle brackets
	Data       []byte // the RFC 5322 message with CRLF line ends
}

// Renderer renders letters. It is safe for concurrent use.
type Renderer struct {
	from      *mail.Address
	domain    string
	languages map[string]language
}

// New checks c and parses the embedded templates.
func New(c Config) (*Renderer, error) {
	from, err := mail.ParseAddress(c.From)
	if err != nil {
		return nil, fmt.Errorf("sender %q: %w", c.From, err)
	}
	if err := CheckDomain(c.Domain); err != nil {
		return nil, err
	}
	languages, err := parseLanguages()
	if err != nil {
		return nil, err
	}
	return &Renderer{from: from, domain: c.Domain, languages: languages}, nil
}

// CheckDomain reports why domain cannot stand in a Message-ID.
func CheckDomain(domain string) error {
	const most = 200
	if domain == "" || len(domain) > most {
		return fmt.Errorf("domain has %d characters, wanted 1 to %d", len(domain), most)
	}
	for label := range strings.SplitSeq(domain, ".") {
		inside := func(r rune) bool {
			return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-'
		}
		if label == "" || strings.IndexFunc(label, func(r rune) bool { return !inside(r) }) >= 0 {
			return fmt.Errorf("domain %q is not letters, digits and hyphens between dots", domain)
		}
	}
	return nil
}

// Render makes the mail of one event. Its errors wrap ErrUnsendable.
func (r *Renderer) Render(e events.Event) (Letter, error) { return r.RenderTo(new(bytes.Buffer), e) }

// RenderTo is Render with the letter's Data in out, which must be empty.
func (r *Renderer) RenderTo(out *bytes.Buffer, e events.Event) (Letter, error) {
	compose := r.ofOrder
	if e.Type == events.TypeMailRequested {
		compose = r.ofRequest
	}
	l, err := compose(out, e)
	if err != nil {
		return Letter{}, fmt.Errorf("%w: %w", ErrUnsendable, err)
	}
	return l, nil
}

func (r *Renderer) ofOrder(out *bytes.Buffer, e events.Event) (Letter, error) {
	order, err := e.Order()
	if err != nil {
		return Letter{}, err
	}
	template, ok := templateOf(e.Type)
	if !ok {
		return Letter{}, fmt.Errorf("no template for type %q", e.Type)
	}
	to, err := recipient(order.Customer)
	if err != nil {
		return Letter{}, err
	}
	p, err := r.render(template, order)
	if err != nil {
		return Letter{}, err
	}
	return r.write(out, e, content{template: template, from: r.from, to: []*mail.Address{to}, envelope: []string{order.Customer.Email}, parts: p})
}

// RequestTemplate stands for the template of mails that bring their own text.
const RequestTemplate = "requested"

// ofRequest writes what was asked for as it is: subject and bodies are the sender's own.
func (r *Renderer) ofRequest(out *bytes.Buffer, e events.Event) (Letter, error) {
	m, err := e.MailRequest()
	if err != nil {
		return Letter{}, err
	}
	c := content{template: RequestTemplate, from: mailbox(m.Sender)}
	for _, to := range m.Recipients {
		c.to, c.envelope = append(c.to, mailbox(to)), append(c.envelope, to.Email)
	}
	c.parts = parts{Subject: headerText(clean(m.Subject)), Text: m.Text, HTML: m.HTML}
	return r.write(out, e, c)
}

func mailbox(m events.Mailbox) *mail.Address {
	return &mail.Address{Name: displayName(m.Name), Address: m.Email}
}

// content is what stands in a mail.
type content struct {
	template string
	from     *mail.Address
	to       []*mail.Address
	envelope []string // the addresses of to, as the event spells them
	parts    parts
}

func (r *Renderer) write(out *bytes.Buffer, e events.Event, c content) (Letter, error) {
	l := Letter{
		EventID: e.ID, OrderID: e.Subject, Version: e.Version,
		Sender: c.from.Address, Recipients: c.envelope, Template: c.template,
	}
	l.Delivery = deliveryID(e, l.Recipients[0], c.template)
	l.MessageID = l.Delivery + "@" + r.domain
	if err := message(out, e, l, c); err != nil {
		return Letter{}, err
	}
	l.Data = out.Bytes()
	return l, nil
}

// templateOf returns the name of the template for an event type.
func templateOf(eventType string) (string, bool) {
	switch eventType {
	case events.TypePlaced:
		return "placed", true
	case events.TypeChanged:
		return "changed", true
	case events.TypeCancelled:
		return "cancelled", true
	default:
		return "", false
	}
}

// recipient is the customer as an addressee. net/mail takes more than mail
// servers do, so lengths and characters are checked on top.
func recipient(c events.Customer) (*mail.Address, error) {
	address, err := mail.ParseAddress(c.Email)
	if err != nil || address.Name != "" {
		return nil, errors.New("customer address is not a plain address")
	}
	local, domain, _ := cutLast(address.Address, "@")
	switch {
	case len(local) > 64 || len(domain) > 255 || len(c.Email) > 320:
		return nil, errors.New("customer address is too long")
	case strings.IndexFunc(c.Email, func(r rune) bool { return r <= ' ' || r > '~' }) >= 0:
		// RFC 6531 would need a mail server that we know nothing about.
		return nil, errors.New("customer address is not plain ASCII")
	}
	address.Name = displayName(c.Name)
	return address, nil
}

// displayName is a name as it may stand before an address. The standard library
// leaves a backslash raw in an encoded word, which strict parsers refuse, so
// names that need encoding get a slash in its place.
func displayName(name string) string {
	name = headerText(clip(clean(name), maxName))
	if strings.IndexFunc(name, func(r rune) bool { return r > '~' }) >= 0 {
		name = strings.ReplaceAll(name, `\`, "/")
	}
	return name
}

// cutLast is strings.Cut around the last separator.
func cutLast(s, separator string) (before, after string, found bool) {
	if i := strings.LastIndex(s, separator); i >= 0 {
		return s[:i], s[i+len(separator):], true
	}
	return s, "", false
}
