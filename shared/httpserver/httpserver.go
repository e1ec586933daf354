// Package httpserver serves HTTP with every timeout set and answers errors as
// problem documents (RFC 9457).
package httpserver

import (
	"context"
	"log/slog"
	"net/http"
	"time"
)

// Config of Serve; zero values mean the defaults.
type Config struct {
	Addr          string
	HeaderTimeout time.Duration // default 5 s
	ReadTimeout   time.Duration // default 15 s
	WriteTimeout  time.Duration // default 30 s
	IdleTimeout   time.Duration // default 60 s
	DrainTimeout  time.Duration // default 8 s
}

// Server is a listening server.
type Server struct{}

// Listen opens the address at once, so that a bad one is a start-up error.
func Listen(c Config, h http.Handler, log *slog.Logger) (*Server, error) { panic("skeleton") }

// Addr is the address it listens on.
func (s *Server) Addr() string { panic("skeleton") }

// Run serves until ctx ends, then drains: requests under way finish to the deadline.
func (s *Server) Run(ctx context.Context) error { panic("skeleton") }

// FieldError is one wrong field.
type FieldError struct {
	Pointer string `json:"pointer"` // JSON pointer (RFC 6901) into the body
	Detail  string `json:"detail"`
}

// Problem is an RFC 9457 document.
type Problem struct {
	Type       string        `json:"type,omitempty"` // omitted means about:blank
	Title      string        `json:"title"`
	Status     int           `json:"status"`
	Detail     string        `json:"detail,omitempty"`
	Errors     []FieldError  `json:"errors,omitempty"`
	RetryAfter time.Duration `json:"-"` // sent as Retry-After, in whole seconds, when positive
}

// Write answers with the problem.
func (p Problem) Write(w http.ResponseWriter) { panic("skeleton") }

// Middleware is what every service's API wears: recoverer (a bare 500 problem), request id.
func Middleware(log *slog.Logger) func(http.Handler) http.Handler { panic("skeleton") }

// NotFound and MethodNotAllowed are problem answers for a router.
func NotFound(w http.ResponseWriter, r *http.Request)         { panic("skeleton") }
func MethodNotAllowed(w http.ResponseWriter, r *http.Request) { panic("skeleton") }
