package doctor

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"

	"github.com/pillarbox/pillarbox/services/suite/terminal"
	"github.com/pillarbox/pillarbox/shared/doctor"
)

// print writes the report as text, or as JSON with one object per line.
func (l *look) print(out io.Writer, asJSON bool) error {
	var text strings.Builder
	if asJSON {
		l.json(&text)
	} else {
		l.text(&text)
	}
	if _, err := io.WriteString(out, text.String()); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}

func (l *look) text(b *strings.Builder) {
	line := func(format string, args ...any) { b.WriteString(harmless(fmt.Sprintf(format, args...)) + "\n") }
	for _, f := range l.Findings {
		line("%s %s: %s: %s", f.Code, f.Severity, f.Where, f.Problem)
		line("  endangers %s", f.Endangers)
		line("  fix       %s", f.Fix)
		if len(f.Services) > 0 {
			line("  seen by   %s", strings.Join(f.Services, ", "))
		}
	}
	for _, n := range l.Unseen {
		line("could not be checked: %s%s", n, by(n.Services))
	}
	for _, n := range l.Notes {
		line("note: %s%s", n, by(n.Services))
	}
	for _, check := range doctor.Checks() {
		line("%-24s %s", check, l.result(check))
	}
}

func by(services []string) string {
	if len(services) == 0 {
		return ""
	}
	return " (" + strings.Join(services, ", ") + ")"
}

// result is what became of one check.
func (l *look) result(check doctor.Check) string {
	findings, unseen := 0, 0
	for _, f := range l.Findings {
		if f.Check == string(check) {
			findings++
		}
	}
	for _, n := range l.Unseen {
		if n.Check == string(check) {
			unseen++
		}
	}
	switch {
	case findings > 0:
		return terminal.Count(findings, "finding")
	case unseen > 0:
		return "could not be checked"
	case slices.Contains(l.unused, check):
		return "not used here"
	}
	return "ok"
}

// harmless keeps what servers said from moving a terminal's cursor.
func harmless(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return '?'
		}
		return r
	}, text)
}

func (l *look) json(b *strings.Builder) {
	encoder := json.NewEncoder(b)
	encoder.SetEscapeHTML(false)
	write := func(value any) { _ = encoder.Encode(value) } // into memory, of texts only
	for _, f := range l.Findings {
		write(struct {
			Kind string `json:"kind"`
			doctor.Finding
		}{"finding", f})
	}
	remarks := func(kind string, all []doctor.Remark) {
		for _, n := range all {
			write(struct {
				Kind string `json:"kind"`
				doctor.Remark
			}{kind, n})
		}
	}
	remarks("unseen", l.Unseen)
	remarks("note", l.Notes)
	for _, check := range doctor.Checks() {
		write(struct {
			Kind   string       `json:"kind"`
			Check  doctor.Check `json:"check"`
			Result string       `json:"result"`
		}{"check", check, l.result(check)})
	}
}
