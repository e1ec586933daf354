package events

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// ErrInvalid is what every decoding error wraps: the bytes can never become an
// event that this release understands, so trying again is no use.
var ErrInvalid = errors.New("invalid event")

const (
	specVersion = "1.0"
	contentType = "application/json"

	maxID   = 64 // bytes of an event id and of a subject: the width of every dedup key
	maxText = 1024
	// maxVersion is the largest CloudEvents Integer (32 bits, signed).
	maxVersion = 1<<31 - 1
)

// envelope is the wire form: CloudEvents 1.0 JSON with the extension attributes
// orderversion, correlationid and traceparent (names in lower case without
// separators, as the specification wants them).
type envelope[Data any] struct {
	SpecVersion     string `json:"specversion"`
	ID              string `json:"id"`
	Source          string `json:"source"`
	Type            string `json:"type"`
	Time            string `json:"time"`
	Subject         string `json:"subject"`
	DataContentType string `json:"datacontenttype,omitempty"`
	OrderVersion    int64  `json:"orderversion"`
	CorrelationID   string `json:"correlationid,omitempty"`
	Traceparent     string `json:"traceparent,omitempty"`
	Data            Data   `json:"data"`
}

// Encode returns the event as CloudEvents 1.0 JSON. It fails on an event that
// Decode would refuse, and does not check MaxSize.
func (e Event) Encode() ([]byte, error) {
	if err := e.checkWhole(); err != nil {
		return nil, err
	}
	return encode(e, e.Data)
}

// EncodeOrder is Encode of an event whose body is o, in one go; Data does not count.
func (e Event) EncodeOrder(o Order) ([]byte, error) {
	if err := e.check(); err != nil {
		return nil, err
	}
	return encode(e, &o)
}

func encode[Data any](e Event, body Data) ([]byte, error) {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	err := enc.Encode(&envelope[Data]{
		SpecVersion:     specVersion,
		ID:              e.ID,
		Source:          e.Source,
		Type:            e.Type,
		Time:            e.Time.UTC().Format(time.RFC3339Nano),
		Subject:         e.Subject,
		DataContentType: contentType,
		OrderVersion:    e.Version,
		CorrelationID:   e.CorrelationID,
		Traceparent:     e.Traceparent,
		Data:            body,
	})
	if err != nil {
		return nil, fmt.Errorf("encode event: %w", err)
	}
	return bytes.TrimSuffix(out.Bytes(), []byte("\n")), nil
}

// Decode reads one CloudEvents 1.0 JSON event, which may share data and must not be changed any more. Its errors wrap ErrInvalid.
func Decode(data []byte) (Event, error) {
	if len(data) > longString {
		if l := lift(data); len(l.long) > 0 {
			if e, ok := l.mailRequest(data); ok {
				return e, nil
			}
		}
	}
	return decode(data)
}

// decode decodes any event.
func decode(data []byte) (Event, error) {
	if len(bytes.TrimSpace(data)) == 0 {
		return Event{}, invalid("empty message")
	}
	if !utf8.Valid(data) {
		return Event{}, invalid("not UTF-8")
	}
	e, err := open(data)
	if err != nil {
		return Event{}, err
	}
	if e.parsed, err = e.parse(); err != nil {
		return Event{}, err
	}
	return e, nil
}

// open reads the envelope and leaves the body as it is.
func open(data []byte) (Event, error) {
	var env envelope[json.RawMessage]
	if err := json.Unmarshal(data, &env); err != nil {
		return Event{}, invalid("not a JSON event: %v", err)
	}
	if env.SpecVersion != specVersion {
		return Event{}, invalid("specversion %q is not %s", clip(env.SpecVersion), specVersion)
	}
	if env.DataContentType != "" && env.DataContentType != contentType {
		return Event{}, invalid("datacontenttype %q is not %s", clip(env.DataContentType), contentType)
	}
	at, err := time.Parse(time.RFC3339Nano, env.Time)
	if err != nil {
		return Event{}, invalid("time %q is not RFC 3339", clip(env.Time))
	}
	e := Event{
		ID: env.ID, Source: env.Source, Type: env.Type, Time: at.UTC(), Subject: env.Subject, Version: env.OrderVersion,
		CorrelationID: env.CorrelationID, Traceparent: env.Traceparent, Data: env.Data,
	}
	return e, e.checkWhole()
}

// parse reads the body by its type.
func (e Event) parse() (any, error) {
	if e.OfOrder() {
		return e.Order()
	}
	return e.MailRequest()
}

// Order returns the body of an order event, which callers share and must not change. Its errors wrap ErrInvalid.
func (e Event) Order() (Order, error) {
	var o Order
	if !e.OfOrder() {
		return Order{}, invalid("type %q is about no order", clip(e.Type))
	}
	if parsed, ok := e.parsed.(Order); ok {
		return parsed, nil
	}
	if err := json.Unmarshal(e.Data, &o); err != nil {
		return Order{}, invalid("data is not an order: %v", err)
	}
	switch {
	case o.ID != e.Subject:
		return Order{}, invalid("data.id %q is not the subject", clip(o.ID))
	case o.Version != e.Version:
		return Order{}, invalid("data.version %d is not orderversion %d", o.Version, e.Version)
	case o.Customer.Email == "":
		return Order{}, invalid("data.customer.email is missing")
	case o.Currency == "" || o.Total == "":
		return Order{}, invalid("data.currency or data.total is missing")
	case o.PlacedAt.IsZero():
		return Order{}, invalid("data.placed_at is missing")
	}
	return o, nil
}

// checkWhole is the part that Encode and Decode share.
func (e Event) checkWhole() error {
	if err := e.check(); err != nil {
		return err
	}
	if len(e.Data) == 0 {
		return invalid("data is missing")
	}
	return nil
}

// check looks at all but the body.
func (e Event) check() error {
	switch {
	case !isKey(e.ID):
		return invalid("id is missing or not 1 to %d printable ASCII characters", maxID)
	case !isKey(e.Subject):
		return invalid("subject is missing or not 1 to %d printable ASCII characters", maxID)
	case e.Source == "" || len(e.Source) > maxText:
		return invalid("source is missing or longer than %d bytes", maxText)
	case !isOrderType(e.Type) && e.Type != TypeMailRequested:
		return invalid("unknown type %q", clip(e.Type))
	case e.Type == TypeMailRequested && (e.Subject != e.ID || e.Version != 1):
		return invalid("a mail request has its id as subject and orderversion 1")
	case e.Version < 1 || e.Version > maxVersion:
		return invalid("orderversion is missing or not between 1 and %d", maxVersion)
	case e.Time.IsZero():
		return invalid("time is missing")
	case len(e.CorrelationID) > maxText || len(e.Traceparent) > maxText:
		return invalid("correlationid or traceparent is longer than %d bytes", maxText)
	}
	return nil
}

// isKey reports whether s can serve as a dedup key and in a log line as it is.
func isKey(s string) bool {
	if s == "" || len(s) > maxID {
		return false
	}
	return strings.IndexFunc(s, func(r rune) bool { return r <= ' ' || r > '~' }) < 0
}

// clip keeps an error short when the bytes are hostile.
func clip(s string) string {
	if len(s) > 60 {
		return strings.ToValidUTF8(s[:60], "") + "…"
	}
	return s
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
}
