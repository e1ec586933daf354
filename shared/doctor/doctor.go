// Package doctor holds what the checks of an installation find: rules with a
// code each, findings, and what could not be looked at. The checks themselves
// stand next to what they look at (database, broker, the services).
//
// It promises that a code means one thing for ever, and that a look that could
// not be taken is told apart from one that found nothing. It does not promise
// that an installation without findings is safe: it knows the mistakes that are
// in its table. Checks change nothing, except that a folder is tried out with a
// scratch file where the caller asks for it; a crash may leave that file behind.
package doctor

import (
	"fmt"
	"slices"
	"strings"
)

// Severity says how bad a finding is.
type Severity string

const (
	// Error: a promise is broken as soon as something fails, a power loss for instance.
	Error Severity = "error"
	// Warning: a protection is missing, or a fault is near.
	Warning Severity = "warning"
)

// Code names a rule.
type Code string

// Rule is one thing that may be wrong.
type Rule struct {
	Code      Code
	Severity  Severity
	Check     Check
	Title     string // what is wrong, in general
	Endangers string // the promises, and how
	Fix       string // what to do
	// Passing: it may be so for a while, as during a rolling upgrade, so that nothing refuses to start for it.
	Passing bool
}

// Finding is a rule that is broken somewhere.
type Finding struct {
	Code      Code     `json:"code"`
	Severity  Severity `json:"severity"`
	Check     string   `json:"check"`
	Services  []string `json:"services,omitempty"`
	Where     string   `json:"where"`
	Problem   string   `json:"problem"`
	Endangers string   `json:"endangers"`
	Fix       string   `json:"fix"`
}

// String is the finding in one line.
func (f Finding) String() string {
	return fmt.Sprintf("%s %s: %s: %s; endangers %s; fix: %s", f.Code, f.Severity, f.Where, f.Problem, f.Endangers, f.Fix)
}

// Remark is what a check has to say beside its findings.
type Remark struct {
	Check    string   `json:"check"`
	Services []string `json:"services,omitempty"`
	Where    string   `json:"where"`
	Text     string   `json:"text"`
}

// String is the remark in one line.
func (r Remark) String() string { return fmt.Sprintf("%s: %s: %s", r.Check, r.Where, r.Text) }

// Report collects what the checks of one or more services say. It is for one
// goroutine. The same from several services is kept once, with their names.
type Report struct {
	Findings []Finding
	// Notes: what cannot be seen by its nature, or is only worth knowing.
	Notes []Remark
	// Unseen: what should have been looked at and could not be.
	Unseen []Remark

	service string
}

// Of names the service that the next calls speak of.
func (r *Report) Of(service string) *Report {
	r.service = service
	return r
}

// Find adds a finding.
func (r *Report) Find(code Code, where, format string, args ...any) {
	rule := RuleOf(code)
	problem := fmt.Sprintf(format, args...)
	for i, f := range r.Findings {
		if f.Code == code && f.Where == where && f.Problem == problem {
			r.Findings[i].Services = r.with(f.Services)
			return
		}
	}
	r.Findings = append(r.Findings, Finding{
		Code: code, Severity: rule.Severity, Check: string(rule.Check), Services: r.with(nil), Where: where,
		Problem: problem, Endangers: rule.Endangers, Fix: rule.Fix,
	})
}

// Note adds a note.
func (r *Report) Note(check Check, where, format string, args ...any) {
	r.Notes = r.remark(r.Notes, check, where, fmt.Sprintf(format, args...))
}

// Miss adds what could not be looked at, and why.
func (r *Report) Miss(check Check, where string, err error) {
	lines := strings.Split(err.Error(), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimSpace(line) // drivers indent the addresses that they tried
	}
	r.Unseen = r.remark(r.Unseen, check, where, strings.Join(lines, "; "))
}

func (r *Report) remark(all []Remark, check Check, where, text string) []Remark {
	for i, n := range all {
		if n.Check == string(check) && n.Where == where && n.Text == text {
			all[i].Services = r.with(n.Services)
			return all
		}
	}
	return append(all, Remark{Check: string(check), Services: r.with(nil), Where: where, Text: text})
}

// Place adds what another report holds, all of it at one place.
func (r *Report) Place(where string, other *Report) {
	for _, f := range other.Findings {
		r.Find(f.Code, where, "%s", f.Problem)
	}
	for _, n := range other.Notes {
		r.Notes = r.remark(r.Notes, Check(n.Check), where, n.Text)
	}
	for _, n := range other.Unseen {
		r.Unseen = r.remark(r.Unseen, Check(n.Check), where, n.Text)
	}
}

func (r *Report) with(services []string) []string {
	if r.service == "" || slices.Contains(services, r.service) {
		return services
	}
	return append(services, r.service)
}

// Refusals are the findings for which a strict process does not start.
func (r *Report) Refusals() []Finding {
	var found []Finding
	for _, f := range r.Findings {
		if !RuleOf(f.Code).Passing {
			found = append(found, f)
		}
	}
	return found
}

// Codes are the codes of the findings, each once, sorted.
func (r *Report) Codes() []Code {
	var codes []Code
	for _, f := range r.Findings {
		codes = append(codes, f.Code)
	}
	slices.Sort(codes)
	return slices.Compact(codes)
}
