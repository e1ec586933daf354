package httpserver

import (
	"encoding/json"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"
)

// FieldError is one wrong field.
type FieldError struct {
	Pointer string `json:"pointer"` // JSON pointer (RFC 6901) into the body
	Detail  string `json:"detail"`
}

// Problem is an RFC 9457 document.
type Problem struct {
	Type       string        `json:"type,omitempty"` // omitted means about:blank
	Title      string        `json:"title"`          // empty means the status's own text
	Status     int           `json:"status"`
	Detail     string        `json:"detail,omitempty"`
	Errors     []FieldError  `json:"errors,omitempty"`
	RetryAfter time.Duration `json:"-"` // sent as Retry-After, in whole seconds, when positive
}

// ContentType of a problem document.
const ContentType = "application/problem+json"

// Write answers with the problem. A client that is gone is no error.
func (p Problem) Write(w http.ResponseWriter) {
	if p.Title == "" {
		p.Title = http.StatusText(p.Status)
	}
	if p.RetryAfter > 0 {
		seconds := int(math.Ceil(p.RetryAfter.Seconds()))
		w.Header().Set("Retry-After", strconv.Itoa(seconds))
	}
	p.Errors = bounded(p.Errors)
	body, err := json.Marshal(p)
	if err != nil {
		panic(err) // strings and ints always encode
	}
	body = append(body, '\n')
	h := w.Header()
	h.Del("Etag")
	h.Del("Location")
	h.Set("Content-Type", ContentType)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(p.Status)
	_, _ = w.Write(body)
}

const (
	maxErrors  = 2_500 // more than an order of the most items can have wrong
	maxPointer = 300   // bytes
)

// bounded keeps what a client sent from coming back multiplied: an answer
// quotes so many fields, and so much of each name.
func bounded(fields []FieldError) []FieldError {
	kept := slices.Clone(fields[:min(len(fields), maxErrors)])
	for i, f := range kept {
		if len(f.Pointer) > maxPointer {
			kept[i].Pointer = strings.ToValidUTF8(f.Pointer[:maxPointer], "") + "…"
		}
	}
	return kept
}

// NotFound is the answer of a router that knows no such path.
func NotFound(w http.ResponseWriter, _ *http.Request) {
	Problem{Status: http.StatusNotFound, Detail: "there is nothing at this path"}.Write(w)
}

// MethodNotAllowed is the answer of a chi router that knows the path, but not with this
// method. It names the methods that the path takes in Allow.
func MethodNotAllowed(w http.ResponseWriter, r *http.Request) {
	// A router with its own answer no longer sets Allow itself (chi v5.5.0, mux.go).
	allowed := allowedMethods(r)
	w.Header().Set("Allow", strings.Join(allowed, ", "))
	detail := "this path takes no such method"
	if len(allowed) > 0 {
		detail = "this path takes " + strings.Join(allowed, ", ")
	}
	Problem{Status: http.StatusMethodNotAllowed, Detail: detail}.Write(w)
}

func allowedMethods(r *http.Request) []string {
	route := chi.RouteContext(r.Context())
	if route == nil || route.Routes == nil {
		return nil
	}
	path := r.URL.RawPath
	if path == "" {
		path = r.URL.Path
	}
	var allowed []string
	for _, method := range []string{
		http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut,
		http.MethodPatch, http.MethodDelete, http.MethodOptions,
	} {
		known := route.Routes.Match(chi.NewRouteContext(), method, path)
		// HEAD is served wherever GET is.
		if known || method == http.MethodHead && slices.Contains(allowed, http.MethodGet) {
			allowed = append(allowed, method)
		}
	}
	return allowed
}
