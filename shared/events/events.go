// Package events is the contract between the services: the order events and mail
// requests, their CloudEvents 1.0 envelope and the topics they travel on. It imports the
// standard library only, so anything may import it.
//
// Encoding is deterministic for a given event. Decoding is strict about what a
// consumer needs (id, type, subject, version, time, data) and lenient about
// attributes and data fields that it does not know, so that an older consumer
// reads a newer event.
package events

import (
	"encoding/json"
	"time"
)

// The event types. A type never changes its meaning; a new shape is a new
// version in the name.
const (
	TypePlaced    = "order.placed.v1"
	TypeChanged   = "order.changed.v1"
	TypeCancelled = "order.cancelled.v1"
)

// TopicOrders is the topic (a JetStream subject) of all order events, and
// StreamOrders the stream that keeps it.
const (
	StreamOrders = "orders"
	TopicOrders  = "orders.events"
)

// Source is the CloudEvents source of events that the order store makes.
const Source = "/pillarbox/store"

// MaxSize is the largest encoded event in bytes. It stays below the broker's
// 1 MB message limit with room for headers.
const MaxSize = 900_000

// MaxTotal is the largest total of an order in whole units of its currency. The
// store refuses more, so that every consumer can count on it.
const MaxTotal = 1_000_000_000_000_000

// Event is one past fact in its envelope.
type Event struct {
	// ID is the identity for deduplication: made once, with the event, never
	// again for a copy. At most 64 printable ASCII characters.
	ID string
	// Source says which system made the event.
	Source string
	// Type is one of the Type constants for events that this release knows.
	Type string
	// Time is when the fact happened, in UTC.
	Time time.Time
	// Subject is the order's id, and the key for ordering; of an event about no order, its own id.
	Subject string
	// Version is the order's version after the event: 1, 2, 3 … without gaps; 1 without an order.
	Version int64
	// CorrelationID ties together what one request caused; may be empty.
	CorrelationID string
	// Traceparent is the W3C trace context of the request; may be empty.
	Traceparent string
	// Data is the JSON body as it stood in the envelope.
	Data json.RawMessage

	// parsed is what Decode made of Data, an Order or a MailRequest, so that nobody reads it again. Events
	// are compared without it.
	parsed any
}

// Order is the body of every order event: the order after the event, whole, so
// that no consumer has to ask the store.
type Order struct {
	ID        string    `json:"id"`
	Version   int64     `json:"version"`
	Status    string    `json:"status"` // placed or cancelled
	Customer  Customer  `json:"customer"`
	Currency  string    `json:"currency"` // ISO 4217
	Items     []Item    `json:"items"`
	Total     string    `json:"total"` // decimal text with the currency's own number of decimals
	Reference string    `json:"reference,omitempty"`
	PlacedAt  time.Time `json:"placed_at"`
}

// Customer is who ordered.
type Customer struct {
	Email  string `json:"email"`
	Name   string `json:"name,omitempty"`
	Locale string `json:"locale,omitempty"` // BCP 47; empty means English
}

// Item is one line of an order.
type Item struct {
	SKU       string `json:"sku"`
	Name      string `json:"name,omitempty"`
	Quantity  int64  `json:"quantity"`
	UnitPrice string `json:"unit_price"` // decimal text
}
