package httpserver

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"runtime/debug"

	"github.com/go-chi/chi/v5/middleware"
	"github.com/google/uuid"

	"github.com/pillarbox/pillarbox/shared/logs"
)

// The headers a client may name its request with. The first sane one is used; the answer
// carries HeaderRequestID.
const (
	HeaderRequestID     = "X-Request-Id" // as net/http spells them: any other spelling is changed at each use
	HeaderCorrelationID = "X-Correlation-Id"
)

const maxRequestID = 128

type requestIDKey struct{}

// RequestID is the id that Middleware gave the request or took from its headers; empty without Middleware.
func RequestID(ctx context.Context) string {
	id, _ := ctx.Value(requestIDKey{}).(string)
	return id
}

// Middleware is what every service's API wears: a request id, taken from the client when it is
// short and printable and answered back; a recoverer that turns a panic into a bare 500 problem; and
// headers that keep browsers from guessing.
func Middleware(log *slog.Logger) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			id := RequestID(r.Context()) // worn twice, the outer one decides
			if id == "" {
				id = requestID(r.Header)
			}
			w.Header().Set(HeaderRequestID, id)
			w.Header().Set("X-Content-Type-Options", "nosniff")
			r = r.WithContext(context.WithValue(r.Context(), requestIDKey{}, id))
			wrapped := Watch(w, r)
			defer recoverRequest(log, wrapped, r)
			next.ServeHTTP(wrapped, r)
		})
	}
}

// Watch returns w as a writer that knows what was answered, as it is when it is one already.
func Watch(w http.ResponseWriter, r *http.Request) middleware.WrapResponseWriter {
	if watched, ok := w.(middleware.WrapResponseWriter); ok {
		return watched
	}
	return middleware.NewWrapResponseWriter(w, r.ProtoMajor)
}

func requestID(h http.Header) string {
	for _, name := range []string{HeaderRequestID, HeaderCorrelationID} {
		if id := h.Get(name); saneID(id) {
			return id
		}
	}
	return uuid.Must(uuid.NewV7()).String() // fails only when the system has no randomness
}

// saneID: what may go into logs, headers and events as it is.
func saneID(id string) bool {
	for i := range len(id) {
		if id[i] <= ' ' || id[i] > '~' {
			return false
		}
	}
	return id != "" && len(id) <= maxRequestID
}

func recoverRequest(log *slog.Logger, w middleware.WrapResponseWriter, r *http.Request) {
	cause := recover()
	if cause == nil {
		return
	}
	// A handler's own way to cut the connection; net/http knows it.
	if err, ok := cause.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		panic(cause)
	}
	// The path may hold a customer's address and stays out of the log.
	log.ErrorContext(r.Context(), "request handler panicked", logs.Error, cause,
		slog.String("request_id", RequestID(r.Context())), slog.String("stack", string(debug.Stack())))
	if w.Status() != 0 {
		// Part of another answer is sent: only a cut connection tells the client that it is not whole.
		panic(http.ErrAbortHandler)
	}
	Problem{Status: http.StatusInternalServerError}.Write(w)
}
