package terminal

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// Object writes one line of JSON.
func (s *Streams) Object(value any) error {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	return s.Bytes(escapeJSON(b.Bytes()))
}

// Line writes one line of text, in which foreign parts are harmless.
func (s *Streams) Line(format string, args ...any) error {
	return s.Bytes([]byte(Printable(fmt.Sprintf(format, args...), NoLimit) + "\n"))
}

// Bytes writes b as it is.
func (s *Streams) Bytes(b []byte) error {
	if _, err := s.Out.Write(b); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}

// Table writes rows in columns; the first is the heading.
func (s *Streams) Table(rows [][]string) error {
	w := tabwriter.NewWriter(s.Out, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		cells := make([]string, len(row))
		for i, text := range row {
			cells[i] = Printable(text, Cell)
		}
		_, _ = fmt.Fprintln(w, strings.Join(cells, "\t")) // Flush has the error
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}

// Ago says how long a time is past, in at most two units.
func Ago(d time.Duration) string {
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

// OrDash is text, or a dash when there is none.
func OrDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
