// Package operate carries what operators do with a consumer's parked events and
// dead letters (consumer.Operator) over HTTP: the handler that a service mounts
// on its admin port, and the client that the operator's tool uses.
//
// A tool that has opened the tables itself uses the same client on the same
// handler without a network (Local). Bodies and lists are bounded; lists come in
// pages. A request that got no answer may have been done: what it did stands in
// the list of actions.
package operate

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"time"

	"github.com/pillarbox/pillarbox/shared/consumer"
)

// Page is a part of a list; Next is the cursor of the following one, empty at the end.
type Page[T any] struct {
	Items []T    `json:"items"`
	Next  string `json:"next,omitempty"`
}

// Retry asks for another attempt now.
type Retry struct {
	consumer.RetryFilter
	Reason string `json:"reason,omitempty"`
}

// Retried is the answer: how many events are due now. More may be left when it is a full 10,000.
type Retried struct {
	Retried int64 `json:"retried"`
}

// Skip lets an order go on without versions.
type Skip struct {
	Order string `json:"order"`
	consumer.Range
	Reason string `json:"reason"`
}

// Drop removes a dead letter.
type Drop struct {
	ID     string `json:"id"`
	Reason string `json:"reason"`
}

// Start starts a redrive, or says what one would do.
type Start struct {
	consumer.LetterFilter
	Rate   int    `json:"rate,omitempty"` // letters per second; 0: the default
	DryRun bool   `json:"dry_run,omitempty"`
	Why    string `json:"why,omitempty"`
}

// Cancel ends a redrive.
type Cancel struct {
	ID     string `json:"id"`
	Reason string `json:"reason,omitempty"`
}

// Done is the answer where there is nothing more to say.
type Done struct {
	Done bool `json:"done"`
}

// cursor is a place in a list, opaque to the client.
type cursor struct {
	Key     string `json:"k,omitempty"`
	ID      string `json:"i,omitempty"`
	Number  int64  `json:"n,omitempty"`
	Version int64  `json:"v,omitempty"`
}

func (c cursor) String() string {
	text, err := json.Marshal(c)
	if err != nil {
		return "" // strings and numbers always encode
	}
	return base64.RawURLEncoding.EncodeToString(text)
}

func readCursor(text string) (c cursor, err error) {
	if text == "" {
		return c, nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(text)
	if err == nil {
		err = json.Unmarshal(raw, &c)
	}
	if err != nil {
		return c, fmt.Errorf("%w: after is no cursor of this list", consumer.ErrInvalid)
	}
	return c, nil
}

func readTime(text string) (t time.Time, err error) {
	if text == "" {
		return t, nil
	}
	if t, err = time.Parse(time.RFC3339Nano, text); err != nil {
		return t, fmt.Errorf("%w: since must be a time such as 2026-11-30T11:00:00Z", consumer.ErrInvalid)
	}
	return t, nil
}
