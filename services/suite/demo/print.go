package demo

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
)

// writeJSON writes one object a line.
func (r Result) writeJSON(out io.Writer) error {
	encoder := json.NewEncoder(out)
	for _, h := range r.Handlings {
		if err := encoder.Encode(h); err != nil {
			return fmt.Errorf("write JSON: %w", err)
		}
	}
	return nil
}

// writeTable writes a row per handling and what each worker did in all.
func (r Result) writeTable(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	keyed := len(r.Handlings) > 0 && r.Handlings[0].Key != ""
	// The errors of these writes come from Flush.
	_, _ = fmt.Fprint(w, "message\tworker\tstart\tend\t")
	if keyed {
		_, _ = fmt.Fprint(w, "key\t")
	}
	_, _ = fmt.Fprintln(w)
	var handled [workers + 1]int
	last := 0.0
	for _, h := range r.Handlings {
		handled[h.Worker]++
		last = max(last, h.End)
		_, _ = fmt.Fprintf(w, "%d\t%d\t%.1f\t%.1f\t", h.Message, h.Worker, h.Start, h.End)
		if keyed {
			_, _ = fmt.Fprintf(w, "%s\t", h.Key)
		}
		_, _ = fmt.Fprintln(w)
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	_, err := fmt.Fprintf(out, "\nworkers 1, 2 and 3 handled %d, %d and %d in %.1f time units; %s\n",
		handled[1], handled[2], handled[3], last, r.Tally)
	if err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	return nil
}
