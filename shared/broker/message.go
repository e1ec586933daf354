package broker

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
)

// Info is what the broker knows of a received message.
type Info struct {
	Subject    string
	Sequence   uint64 // in the stream
	Deliveries uint64 // 1 for the first
	StoredAt   time.Time
	Headers    map[string][]string // as they came
	// Malformed is why the message cannot be an event (a header with two values), else "".
	Malformed string
}

type deliveryKey struct{}

// InfoOf returns the broker's knowledge of a message that Subscribe handed out.
func InfoOf(m *message.Message) (Info, bool) {
	d := deliveryOf(m)
	if d == nil {
		return Info{}, false
	}
	return d.info, true
}

func deliveryOf(m *message.Message) *delivery {
	d, _ := m.Context().Value(deliveryKey{}).(*delivery)
	return d
}

// decode makes our message from the broker's. Nothing in msg can make it fail: what is odd is
// said in Info.Malformed, and the handler decides. ctx ends when the handler's time is over.
func decode(ctx context.Context, msg *nats.Msg, meta *nats.MsgMetadata, d *delivery) *message.Message {
	d.info = Info{
		Subject: msg.Subject, Sequence: meta.Sequence.Stream, Deliveries: meta.NumDelivered,
		StoredAt: meta.Timestamp.UTC(), Headers: msg.Header,
	}
	id := first(msg.Header[MetaUUID])
	if id == "" {
		id = first(msg.Header[MetaPublishID])
	}
	if id == "" {
		id = watermill.NewUUID() // Watermill's own logging wants one; it identifies nothing
	}
	m := message.NewMessage(id, msg.Data)
	for _, name := range slices.Sorted(maps.Keys(msg.Header)) {
		values := msg.Header[name]
		if len(values) > 1 && d.info.Malformed == "" {
			d.info.Malformed = fmt.Sprintf("header %q has %d values", name, len(values))
		}
		// The server's headers belong to this copy: a message that is published onward must not bring
		// its old publish id along, or the stream would swallow it as a duplicate.
		if name != MetaUUID && !strings.HasPrefix(name, reservedPrefix) {
			m.Metadata[name] = first(values)
		}
	}
	ctx, d.cancel = context.WithCancel(context.WithValue(ctx, deliveryKey{}, d))
	m.SetContext(ctx)
	return m
}

func first(values []string) string {
	if len(values) == 0 {
		return ""
	}
	return values[0]
}
