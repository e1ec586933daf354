package admin

import (
	"encoding/json"
	"mime"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/pillarbox/pillarbox/shared/httpserver"
)

const (
	// OperatorPath is where the operators' actions are: each service's below its name.
	OperatorPath = "/admin/"
	// HeaderOperator names who acts, percent-encoded. A page in a browser cannot set it for another site
	// without asking first, and nobody here answers such a question.
	HeaderOperator = "Pillarbox-Operator"
)

// Services is what a process answers at OperatorPath.
type Services struct {
	Services []string `json:"services"`
}

// Mount adds or replaces the operators' actions of one service, below OperatorPath and its name.
func (c *Checks) Mount(service string, handler http.Handler) {
	c.actions.mu.Lock()
	defer c.actions.mu.Unlock()
	if c.actions.handlers == nil {
		c.actions.handlers = map[string]http.Handler{}
	}
	c.actions.handlers[service] = handler
}

// MountPart adds or replaces what is below one name of a service: it goes before what Mount has there.
func (c *Checks) MountPart(service, part string, handler http.Handler) {
	c.Mount(service+"/"+part, handler)
}

// actions serves what is mounted. The port has no log-in, so it guards against the one visitor that its
// network does not keep out: a page in an operator's browser.
type actions struct {
	mu       sync.Mutex              // guards handlers; not that of the checks, which is held while they run
	handlers map[string]http.Handler // by service, or service/part
}

func (a *actions) of(service, rest string) http.Handler {
	part, _, _ := strings.Cut(rest, "/")
	a.mu.Lock()
	defer a.mu.Unlock()
	if handler := a.handlers[service+"/"+part]; handler != nil {
		return handler
	}
	return a.handlers[service]
}

func (a *actions) services() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	names := []string{}
	for key := range a.handlers {
		name, _, _ := strings.Cut(key, "/")
		names = append(names, name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func (a *actions) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if p, ok := foreign(r); ok {
		p.Write(w)
		return
	}
	path := strings.TrimPrefix(r.URL.Path, OperatorPath)
	if path == "" && r.Method == http.MethodGet {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		_ = json.NewEncoder(w).Encode(Services{a.services()}) // an error means that the client has gone
		return
	}
	service, rest, _ := strings.Cut(path, "/")
	handler := a.of(service, rest)
	if handler == nil {
		httpserver.NotFound(w, r)
		return
	}
	http.StripPrefix(OperatorPath+service, handler).ServeHTTP(w, r)
}

// foreign returns the answer to a request that a tool would not send.
func foreign(r *http.Request) (httpserver.Problem, bool) {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	switch {
	case r.Header.Get("Origin") != "", r.Header.Get("Sec-Fetch-Site") != "":
		return httpserver.Problem{Status: http.StatusForbidden, Detail: "this is not for browsers"}, true
	case r.Header.Get(HeaderOperator) == "":
		return httpserver.Problem{Status: http.StatusForbidden, Detail: "the header " + HeaderOperator + " must name who acts"}, true
	case r.Method != http.MethodGet && r.Method != http.MethodHead && (err != nil || kind != "application/json"):
		return httpserver.Problem{Status: http.StatusUnsupportedMediaType, Detail: "the body must be application/json"}, true
	}
	return httpserver.Problem{}, false
}
