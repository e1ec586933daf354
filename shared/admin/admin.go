// Package admin is the operator's port of a process: /live, /ready, /metrics and
// what operators may do (/admin/). It is not for the public network and answers no
// user: it has no log-in, and whoever reaches it may change things.
package admin

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// checkTimeout bounds one readiness check: a probe that hangs is a "no".
const checkTimeout = 2 * time.Second

// Check reports why a part cannot do its work now, or nil. Its text is shown to operators.
type Check func(ctx context.Context) error

// Checks is what the parts of a process show at its admin port: the readiness
// checks, notes and the operators' actions. It may grow while the port is served;
// its zero value is ready for use, and answers "not ready" until the first Set.
type Checks struct {
	mu     sync.Mutex // guards checks and notes
	checks map[string]Check
	notes  map[string]func() string

	actions actions
}

// Set adds or replaces the check of one part.
func (c *Checks) Set(name string, check Check) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.checks == nil {
		c.checks = map[string]Check{}
	}
	c.checks[name] = check
}

// Note adds or replaces what /ready says besides of one part: nothing while it returns "".
func (c *Checks) Note(name string, note func() string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.notes == nil {
		c.notes = map[string]func() string{}
	}
	c.notes[name] = note
}

// noted returns what the parts say now, by name.
func (c *Checks) noted() map[string]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	said := map[string]string{}
	for name, note := range c.notes {
		if text := note(); text != "" {
			said[name] = text
		}
	}
	return said
}

// Failing runs all checks at once and returns what they say, by name; empty
// means ready.
func (c *Checks) Failing(ctx context.Context) map[string]string {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.checks) == 0 {
		return map[string]string{"process": "starting"}
	}
	type answer struct {
		name string
		err  error
	}
	answers := make(chan answer, len(c.checks))
	waiting := map[string]bool{}
	for name, check := range c.checks {
		waiting[name] = true
		go func() { answers <- answer{name, check(ctx)} }()
	}
	failing := map[string]string{}
	for len(waiting) > 0 {
		select {
		case a := <-answers:
			delete(waiting, a.name)
			if a.err != nil {
				failing[a.name] = a.err.Error()
			}
		case <-ctx.Done():
			for name := range waiting {
				failing[name] = "no answer"
			}
			return failing
		}
	}
	return failing
}

// NewRegistry returns a metrics registry with the Go runtime's and the
// process's own figures.
func NewRegistry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// Handler serves /live (the process runs), /ready (200, or 503 with the failing
// checks, and notes), /metrics, and what is mounted below /admin/.
func Handler(checks *Checks, metrics prometheus.Gatherer) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /live", func(w http.ResponseWriter, _ *http.Request) {
		writeStatus(w, http.StatusOK, "live", nil, nil)
	})
	mux.HandleFunc("GET /ready", func(w http.ResponseWriter, r *http.Request) {
		if failing := checks.Failing(r.Context()); len(failing) > 0 {
			writeStatus(w, http.StatusServiceUnavailable, "not ready", failing, checks.noted())
			return
		}
		writeStatus(w, http.StatusOK, "ready", nil, checks.noted())
	})
	mux.Handle(OperatorPath, &checks.actions)
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	return mux
}

func writeStatus(w http.ResponseWriter, code int, status string, failing, notes map[string]string) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(code)
	// The status line is out; an error here means that the client has gone.
	_ = json.NewEncoder(w).Encode(struct {
		Status  string            `json:"status"`
		Failing map[string]string `json:"failing,omitempty"`
		Notes   map[string]string `json:"notes,omitempty"`
	}{status, failing, notes})
}
