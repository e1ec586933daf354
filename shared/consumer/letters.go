package consumer

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/events"
)

// letter is a dead letter: what will never work by itself. It is written again
// under the same id when a crash comes before the acknowledgement.
type letter struct {
	id       string
	eventID  string // empty when the message has none
	orderID  string
	version  int64
	subject  string
	sequence uint64
	headers  string // JSON
	body     []byte
	reason   string
	attempts int
	history  string // JSON
	skipped  bool   // the order went on without it
}

// decode returns the event of a message to the consumer called name, or the letter that it becomes.
func decode(m *message.Message, name string) (*item, *letter) {
	info, known := broker.InfoOf(m)
	if !known {
		info.Headers = map[string][]string{}
		for k, v := range m.Metadata {
			info.Headers[k] = []string{v}
		}
	}
	reason := info.Malformed
	var e events.Event
	if reason == "" {
		var err error
		if e, err = events.Decode(m.Payload); err != nil {
			reason = err.Error()
		}
	}
	var route events.Route
	if reason == "" {
		var err error
		if route, err = routeTo(name, info.Headers); err != nil {
			reason = err.Error()
		}
	}
	if reason != "" {
		return nil, unreadableLetter(m.Payload, info, reason)
	}
	return &item{
		Event:   Event{e, m.Payload, info.Sequence},
		route:   route,
		copies:  []*message.Message{m},
		sourced: sourced(info.Subject, info.StoredAt),
	}, nil
}

// unreadableLetter has no event id to go by: where it stood and what it holds identify it.
func unreadableLetter(body []byte, info broker.Info, reason string) *letter {
	headers := headersText(info.Headers)
	sum := sha256.New()
	fmt.Fprintf(sum, "%s\n%s\n", info.Subject, headers)
	sum.Write(body)
	l := &letter{
		id:      fmt.Sprintf("message-%d-%s", info.Sequence, hex.EncodeToString(sum.Sum(nil)[:16])),
		subject: info.Subject, sequence: info.Sequence, headers: headers, body: body, reason: reason,
	}
	// What the message says of itself, to help the person who looks at it.
	var says struct {
		ID      string `json:"id"`
		Subject string `json:"subject"`
		Version int64  `json:"orderversion"`
	}
	if json.Unmarshal(body, &says) == nil && len(says.ID) <= 64 && len(says.Subject) <= 64 {
		l.eventID, l.orderID, l.version = clean(says.ID, 64), clean(says.Subject, 64), says.Version
	}
	return l
}

// letterOf is the letter of an event that failed for good.
func letterOf(i *item, cause error, attempts int) *letter {
	from := i.origin()
	return &letter{
		id: letterID(i.ID), eventID: i.ID, orderID: i.Subject, version: i.Version, subject: from.topic,
		sequence: i.Sequence, headers: from.headers, body: i.Raw, reason: cause.Error(), attempts: attempts,
	}
}

// letterID is the id of the letter of an event that could be read.
func letterID(eventID string) string { return "event-" + eventID }

// insertLetter writes a dead letter. A letter that stands already (written before a crash, or before
// it was tried again) gets the newer reason.
func insertLetter(ctx context.Context, tx *database.Tx, l *letter) error {
	body := l.body
	if body == nil {
		body = []byte{} // NULL would be refused
	}
	_, err := tx.ExecContext(ctx, `
		INSERT INTO dead_letters (id, event_id, order_id, version, subject, stream_sequence, headers, body, reason, attempts, history, skipped)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
		ON CONFLICT (id) DO UPDATE SET reason = excluded.reason, attempts = excluded.attempts,
			history = excluded.history, skipped = excluded.skipped`,
		l.id, orNull(l.eventID), orNull(l.orderID), orNull(l.version), clean(l.subject, maxText), int64(l.sequence),
		cmp.Or(l.headers, "{}"), body, clean(l.reason, maxText), l.attempts, cmp.Or(l.history, "[]"), flag(l.skipped))
	if err != nil {
		return fmt.Errorf("insert dead letter: %w", err)
	}
	return nil
}

// maxText is what the tables take of a reason, in bytes.
const maxText = 4000

// clean makes text fit for a column: PostgreSQL takes neither NUL nor broken UTF-8.
func clean(s string, limit int) string {
	if len(s) > limit {
		s = s[:limit]
	}
	// An invalid end of the cut is dropped too, so the limit holds.
	return strings.ReplaceAll(strings.ToValidUTF8(s, ""), "\x00", "")
}

func headersText(h map[string][]string) string {
	if len(h) == 0 {
		return "{}"
	}
	text, err := json.Marshal(h) // sorted keys; NUL is escaped, broken UTF-8 replaced
	if err != nil {
		return "{}" // strings always encode
	}
	return string(text)
}

// flag is a truth as both engines keep it.
func flag(b bool) int {
	if b {
		return 1
	}
	return 0
}

func orNull[T comparable](v T) any {
	var zero T
	if v == zero {
		return nil
	}
	return v
}
