package queue

import (
	"encoding/base64"
	"time"
	"unicode/utf8"

	"github.com/pillarbox/pillarbox/shared/broker"
)

// messageRecord is a message in JSON.
type messageRecord struct {
	Queue      string              `json:"queue"`
	Consumer   string              `json:"consumer,omitempty"`
	Subject    string              `json:"subject"`
	Sequence   uint64              `json:"sequence"`
	StoredAt   time.Time           `json:"stored_at"`
	Deliveries uint64              `json:"deliveries,omitempty"`
	ID         string              `json:"id,omitempty"`
	Headers    map[string][]string `json:"headers,omitempty"`
	Bytes      int                 `json:"bytes"`
	Data       *string             `json:"data,omitempty"`        // when it is UTF-8
	DataBase64 string              `json:"data_base64,omitempty"` // else
}

func recordOf(queue string, m broker.Stored) messageRecord {
	r := messageRecord{
		Queue: queue, Subject: m.Subject, Sequence: m.Sequence, StoredAt: m.StoredAt, ID: idOf(m),
		Headers: m.Headers, Bytes: len(m.Data),
	}
	if utf8.Valid(m.Data) {
		text := string(m.Data)
		r.Data = &text
	} else {
		r.DataBase64 = base64.StdEncoding.EncodeToString(m.Data)
	}
	return r
}

// idOf is the message's publish id.
func idOf(m broker.Stored) string {
	if ids := m.Headers[broker.MetaPublishID]; len(ids) > 0 {
		return ids[0]
	}
	return ""
}
