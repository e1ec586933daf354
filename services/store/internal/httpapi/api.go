// Package httpapi is the store's HTTP interface: strict JSON in, orders and problem
// documents (RFC 9457) out, described by openapi.yaml, which it serves.
//
// It promises that a 200 or 201 answer to a write is on disk, for a batch what each result says; that
// every wrong field is named in one answer (of a batch's order, the first of them); that of requests with one
// idempotency key at most two are under way in this process, those inside batches aside; and that no
// answer holds an SQL text, a path of the machine or a customer's data that the client did not send or ask for.
// It keeps nothing in memory that a crash could lose. With Config.Async a placement is answered 202 before it
// is on disk; package intake says what a crash then loses.
package httpapi

import (
	"context"
	_ "embed"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/pillarbox/pillarbox/services/store/internal/intake"
	"github.com/pillarbox/pillarbox/services/store/internal/order"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/httpserver"
)

// MaxBody is the largest request body in bytes, and the largest order in a batch.
const MaxBody = 1 << 20

// readTimeout bounds the queries of one request.
const readTimeout = 5 * time.Second

// Writer is what the interface needs of the intake.
type Writer interface {
	Place(ctx context.Context, p order.Placement, keyed *intake.Keyed, t intake.Trace, size int) (intake.Answer, error)
	PlaceAll(ctx context.Context, items []intake.Item, t intake.Trace) []intake.Outcome
	Accept(p order.Placement, t intake.Trace, size int, release func()) (id string, err error)
	Revise(ctx context.Context, id string, match func(version int64) bool, r order.Revision, t intake.Trace, size int) (
		order.Order, error)
	Cancel(ctx context.Context, id string, match func(version int64) bool, t intake.Trace) (order.Order, error)
}

// Config of the interface; zero values mean the defaults.
type Config struct {
	// BodyBudget bounds the bytes of all request bodies in memory at once. Default 64 MiB.
	BodyBudget int64
	// Wait is how long a request waits for one with the same idempotency key. Default 10 s.
	Wait time.Duration
	// Keys bounds the idempotency keys that are worked on at once. Default 10,000.
	Keys int
	// BatchBody is the largest body of a batch in bytes. Default 8 MiB; at most half the budget, since a body that
	// could never be read would be refused for ever as if it might be later.
	BatchBody int64
	// Async answers placements before they are stored.
	Async bool
}

// Deps of the interface.
type Deps struct {
	DB       *database.DB
	Writer   Writer
	Log      *slog.Logger
	Registry prometheus.Registerer
}

type api struct {
	Deps
	batchBody int64
	budget    *budget
	inFlight  *inFlight
	batched   *prometheus.CounterVec
}

//go:embed openapi.yaml
var openapi []byte

// New returns the handler. It does no I/O.
func New(c Config, d Deps) (http.Handler, error) {
	if d.DB == nil || d.Writer == nil || d.Log == nil || d.Registry == nil {
		return nil, errors.New("httpapi: a dependency is missing")
	}
	if c.BodyBudget <= 0 {
		c.BodyBudget = 64 << 20
	}
	if c.BatchBody <= 0 {
		c.BatchBody = 8 << 20
	}
	measure, err := newMeasure(d.Registry)
	if err != nil {
		return nil, err
	}
	batched, err := newBatched(d.Registry)
	if err != nil {
		return nil, err
	}
	inFlight, err := newInFlight(c.Wait, c.Keys, d.Registry)
	if err != nil {
		return nil, err
	}
	a := &api{
		Deps: d, batchBody: min(c.BatchBody, c.BodyBudget/2), budget: newBudget(c.BodyBudget), inFlight: inFlight,
		batched: batched,
	}
	r := chi.NewRouter()
	r.Use(httpserver.Middleware(d.Log), measure)
	r.NotFound(httpserver.NotFound)
	r.MethodNotAllowed(httpserver.MethodNotAllowed)
	get := func(path string, h http.HandlerFunc) {
		r.Get(path, h)
		r.Head(path, h)
	}
	if c.Async {
		r.Post("/orders", a.accept)
	} else {
		r.Post("/orders", a.place)
	}
	r.Post("/orders/batch", a.batch)
	get("/orders", a.list)
	get("/orders/{id}", a.get)
	r.Patch("/orders/{id}", a.revise)
	r.Post("/orders/{id}/cancel", a.cancel)
	get("/orders/{id}/timeline", a.timeline)
	get("/openapi.yaml", serveOpenAPI)
	return r, nil
}

func serveOpenAPI(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/yaml")
	_, _ = w.Write(openapi) // a client that is gone
}
