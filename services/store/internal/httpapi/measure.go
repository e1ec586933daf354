package httpapi

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/pillarbox/pillarbox/shared/httpserver"
)

// newMeasure is a middleware that counts and times requests by route, never by path.
func newMeasure(reg prometheus.Registerer) (func(http.Handler) http.Handler, error) {
	requests := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "http_requests_total", Help: "Answered requests, by route, method and status.",
	}, []string{"route", "method", "status"})
	seconds := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "http_request_seconds", Help: "Duration of requests, by route and method.",
		Buckets: prometheus.ExponentialBuckets(0.001, 2, 14),
	}, []string{"route", "method"})
	if err := errors.Join(reg.Register(requests), reg.Register(seconds)); err != nil {
		return nil, fmt.Errorf("httpapi: %w", err)
	}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			start := time.Now()
			wrapped := httpserver.Watch(w, r)
			next.ServeHTTP(wrapped, r)
			route := chi.RouteContext(r.Context()).RoutePattern()
			method := r.Method
			if route == "" {
				route, method = "other", "other" // both are the client's to choose
			}
			requests.WithLabelValues(route, method, strconv.Itoa(wrapped.Status())).Inc()
			seconds.WithLabelValues(route, method).Observe(time.Since(start).Seconds())
		})
	}, nil
}
