// Package httpapi serves the loyalty accounts over HTTP. It only reads.
//
//	GET /loyalty/accounts/EMAIL[?limit=N][&after=CURSOR]
//
// answers 200 with
//
//	{"customer","points","entries":[{"event_id","order_id","points","reason","at"}],"next":null}
//
// EMAIL is the customer's address, percent-encoded as a path needs it; its domain may
// be in any case. "points" is the balance, entries are what it was made of, the newest
// first: points gained or lost by one event of an order, the reason (placed, changed or
// cancelled), and when that was (RFC 3339, UTC). limit is 1 to 200, default 50. "next" is the
// cursor for older entries, null when there are none. An address that no order
// named answers 404. A parameter that is unknown, given twice or out of range is
// named in a problem document with status 400.
package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

	"github.com/pillarbox/pillarbox/services/loyalty/internal/ledger"
	"github.com/pillarbox/pillarbox/services/loyalty/internal/points"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/httpserver"
	"github.com/pillarbox/pillarbox/shared/logs"
)

// queryTimeout is below the server's write timeout, so that a slow database is answered and not cut off.
const queryTimeout = 5 * time.Second

type api struct {
	ledger *ledger.Ledger
	log    *slog.Logger
}

// New returns the handler of all paths below /loyalty.
func New(l *ledger.Ledger, log *slog.Logger) http.Handler {
	a := &api{ledger: l, log: log}
	r := chi.NewRouter()
	r.Use(httpserver.Middleware(log), middleware.GetHead)
	r.NotFound(httpserver.NotFound)
	r.MethodNotAllowed(httpserver.MethodNotAllowed)
	r.Get("/loyalty/accounts/{address}", a.account)
	return r
}

func (a *api) account(w http.ResponseWriter, r *http.Request) {
	query, problems := parse(r.URL.RawQuery)
	if len(problems) > 0 {
		httpserver.Problem{Status: http.StatusBadRequest, Detail: problems.String()}.Write(w)
		return
	}
	account, ok := points.Account(address(r))
	if !ok {
		noAccount(w)
		return
	}
	query.Account = account
	ctx, cancel := context.WithTimeout(r.Context(), queryTimeout)
	defer cancel()
	statement, err := a.ledger.Statement(ctx, query)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	body, err := encode(statement)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("Cache-Control", "no-store") // it holds a customer's data
	_, _ = w.Write(body)               // a client that is gone is no error
}

// address is the path's last part as the client meant it. The router matches the
// escaped path when there is one (it may hold an escaped slash), and gives parts of that.
func address(r *http.Request) string {
	part := chi.URLParam(r, "address")
	if r.URL.RawPath == "" {
		return part
	}
	plain, err := url.PathUnescape(part)
	if err != nil {
		return "" // net/http has refused such a path already
	}
	return plain
}

func noAccount(w http.ResponseWriter) {
	httpserver.Problem{Status: http.StatusNotFound, Detail: "no order named this address"}.Write(w)
}

func (a *api) fail(w http.ResponseWriter, r *http.Request, err error) {
	switch {
	case r.Context().Err() != nil: // nobody waits for the answer
	case errors.Is(err, ledger.ErrNoAccount):
		noAccount(w)
	case errors.Is(err, context.DeadlineExceeded), database.Classify(err) == database.ClassUnavailable:
		a.log.WarnContext(r.Context(), "loyalty account unavailable", logs.Error, err)
		httpserver.Problem{Status: http.StatusServiceUnavailable, RetryAfter: time.Second,
			Detail: "the database does not answer"}.Write(w)
	default:
		a.log.ErrorContext(r.Context(), "loyalty account not readable", logs.Error, err)
		httpserver.Problem{Status: http.StatusInternalServerError}.Write(w)
	}
}

type statement struct {
	Customer string  `json:"customer"`
	Points   int64   `json:"points"`
	Entries  []entry `json:"entries"`
	Next     *string `json:"next"`
}

type entry struct {
	EventID string        `json:"event_id"`
	OrderID string        `json:"order_id"`
	Points  int64         `json:"points"`
	Reason  points.Reason `json:"reason"`
	At      time.Time     `json:"at"`
}

func encode(s ledger.Statement) ([]byte, error) {
	out := statement{Customer: s.Account, Points: s.Points, Entries: []entry{}}
	for _, e := range s.Entries {
		out.Entries = append(out.Entries, entry{e.EventID, e.OrderID, e.Points, e.Reason, e.At})
	}
	if s.Next > 0 {
		next := cursor(s.Next)
		out.Next = &next
	}
	body, err := json.Marshal(out)
	return append(body, '\n'), err
}
