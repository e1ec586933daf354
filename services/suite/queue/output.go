package queue

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/pillarbox/pillarbox/shared/broker"
)

// object writes one line of JSON.
func (s *Streams) object(value any) error {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	return s.bytes(escapeJSON(b.Bytes()))
}

// line writes one line of text, in which foreign parts are harmless.
func (s *Streams) line(format string, args ...any) error {
	return s.bytes([]byte(printable(fmt.Sprintf(format, args...), noLimit) + "\n"))
}

func (s *Streams) bytes(b []byte) error {
	if _, err := s.Out.Write(b); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}

// table writes rows in columns; the first is the heading.
func (s *Streams) table(rows [][]string) error {
	w := tabwriter.NewWriter(s.Out, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, text := range row {
			cells[i] = printable(text, cell)
		}
		_, _ = fmt.Fprintln(w, strings.Join(cells, "\t")) // Flush has the error
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}

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

// ago says how long a time is past, in at most two units.
func ago(d time.Duration) string {
	d = max(d, 0)
	switch {
	case d < time.Second:
		return strconv.FormatInt(d.Milliseconds(), 10) + "ms"
	case d < time.Minute:
		return strconv.FormatInt(int64(d.Seconds()), 10) + "s"
	case d < time.Hour:
		return fmt.Sprintf("%dm%ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd%dh", int(d.Hours())/24, int(d.Hours())%24)
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
