package drill

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Problems of a finding.
const (
	Lost       = "lost"       // answered to a shop, and its effect is not there
	Duplicated = "duplicated" // its effect is there more than once
	Reordered  = "reordered"  // a mail that appeared after that of a later version
	Unknown    = "unknown"    // an effect of nothing that was answered
	Wrong      = "wrong"      // a balance that is not the sum of the orders, a mail to somebody else
)

// mostFindings bounds what is named; all are counted.
const mostFindings = 20

// Finding is one effect that is not as it must be.
type Finding struct {
	Problem string `json:"problem"`
	Effect  string `json:"effect"`
	Order   string `json:"order_id,omitempty"`
	Version int64  `json:"version,omitempty"`
	Detail  string `json:"detail,omitempty"`
}

func (f Finding) String() string {
	var s strings.Builder
	fmt.Fprintf(&s, "%s: %s", f.Problem, f.Effect)
	if f.Order != "" {
		fmt.Fprintf(&s, " of order %s version %d", f.Order, f.Version)
	}
	if f.Detail != "" {
		s.WriteString(", " + f.Detail)
	}
	return s.String()
}

// Report is what happened.
type Report struct {
	Clean    bool    `json:"clean"`
	Seed     uint64  `json:"seed"`
	Seconds  float64 `json:"seconds"` // of load and faults
	Orders   int     `json:"orders"`
	Facts    int     `json:"facts"` // placements, changes and cancellations that were answered
	Repeated int64   `json:"requests_repeated"`

	Kills   int `json:"kills"`
	Freezes int `json:"freezes"`
	Stops   int `json:"stops"`
	Ended   int `json:"ended_by_itself"` // the suite, without a fault of the drill

	Lost       int       `json:"lost"`
	Duplicated int       `json:"duplicated"`
	Reordered  int       `json:"reordered"`
	Unknown    int       `json:"unknown"`
	Wrong      int       `json:"wrong"`
	Findings   []Finding `json:"findings"` // the first of them

	// From a restart, or the end of a freeze, to the first mail after it.
	WorstRecovery  float64 `json:"worst_recovery_seconds"`
	MedianRecovery float64 `json:"median_recovery_seconds"`
	// From the end of the load to the last effect.
	Settled float64 `json:"settled_seconds"`
	Kept    string  `json:"kept,omitempty"` // the scratch folder
}

func (r *Report) find(f Finding) {
	*map[string]*int{Lost: &r.Lost, Duplicated: &r.Duplicated, Reordered: &r.Reordered, Unknown: &r.Unknown, Wrong: &r.Wrong}[f.Problem]++
	if len(r.Findings) < mostFindings {
		r.Findings = append(r.Findings, f)
	}
}

func (r *Report) recovered(times []time.Duration) {
	if len(times) == 0 {
		return
	}
	slices.Sort(times)
	r.WorstRecovery, r.MedianRecovery = seconds(times[len(times)-1]), seconds(times[len(times)/2])
}

// seconds to the millisecond.
func seconds(d time.Duration) float64 { return float64(d.Milliseconds()) / 1000 }

// verdict is the report in one line.
func (r *Report) verdict() string {
	if r.Clean {
		return "clean: each fact has one mail, one audit record and its points, in order, and there is nothing else"
	}
	return fmt.Sprintf("not clean: %d lost, %d duplicated, %d reordered, %d unknown, %d wrong (seed %d)",
		r.Lost, r.Duplicated, r.Reordered, r.Unknown, r.Wrong, r.Seed)
}

func (r *Report) print(out io.Writer, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(out).Encode(r)
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, row := range [][2]string{
		{"load", fmt.Sprintf("%d orders, %d facts in %.1f s; %d requests tried again", r.Orders, r.Facts, r.Seconds, r.Repeated)},
		{"faults", fmt.Sprintf("%d kills, %d freezes, %d clean stops; ended by itself %d times", r.Kills, r.Freezes, r.Stops, r.Ended)},
		{"recovery", fmt.Sprintf("worst %.1f s, median %.1f s, to the first mail after a restart or freeze", r.WorstRecovery, r.MedianRecovery)},
		{"settled", fmt.Sprintf("%.1f s after the end of the load", r.Settled)},
		{"lost", fmt.Sprint(r.Lost)}, {"duplicated", fmt.Sprint(r.Duplicated)}, {"reordered", fmt.Sprint(r.Reordered)},
		{"unknown", fmt.Sprint(r.Unknown)}, {"wrong", fmt.Sprint(r.Wrong)},
		{"seed", fmt.Sprint(r.Seed)},
	} {
		fmt.Fprintf(w, "%s\t%s\n", row[0], row[1])
	}
	if r.Kept != "" {
		fmt.Fprintf(w, "kept\t%s\n", r.Kept)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, f := range r.Findings {
		fmt.Fprintln(out, "  "+f.String())
	}
	if all := r.Lost + r.Duplicated + r.Reordered + r.Unknown + r.Wrong; all > len(r.Findings) {
		fmt.Fprintf(out, "  … and %d more\n", all-len(r.Findings))
	}
	_, err := fmt.Fprintln(out, r.verdict())
	return err
}
