// Package httpapi serves the audit log over HTTP. It only reads.
//
//	GET /audit/entries[?order=ID][&limit=N][&after=CURSOR]
//
// answers 200 with
//
//	{"entries":[{"event_id","type","order_id","order_version","occurred_at","recorded_at","event"}],"next":null}
//
// in the order of recording; "event" is the CloudEvents envelope, byte for byte as
// it came, and times are RFC 3339 in UTC. limit is 1 to 200, default 50. A page may end
// earlier, after about 1 MiB of events. "next" is the cursor for the page that follows,
// null on the last one. An order that nobody knows has no entries. A parameter that is
// unknown, given twice or out of range is named in a problem document with status 400.
package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

	"github.com/pillarbox/pillarbox/services/audit/internal/auditlog"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/httpserver"
	"github.com/pillarbox/pillarbox/shared/logs"
)

// queryTimeout is below the server's write timeout, so that a slow database is answered and not cut off.
const queryTimeout = 5 * time.Second

type api struct {
	entries *auditlog.Log
	log     *slog.Logger
}

// New returns the handler of all paths below /audit.
func New(entries *auditlog.Log, log *slog.Logger) http.Handler {
	a := &api{entries: entries, log: log}
	r := chi.NewRouter()
	r.Use(httpserver.Middleware(log), middleware.GetHead)
	r.NotFound(httpserver.NotFound)
	r.MethodNotAllowed(httpserver.MethodNotAllowed)
	r.Get("/audit/entries", a.list)
	return r
}

func (a *api) list(w http.ResponseWriter, r *http.Request) {
	query, problems := parse(r.URL.RawQuery)
	if len(problems) > 0 {
		httpserver.Problem{Status: http.StatusBadRequest, Detail: problems.String()}.Write(w)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), queryTimeout)
	defer cancel()
	page, err := a.entries.Page(ctx, query)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	body, err := encode(page)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("Cache-Control", "no-store") // it holds customers' data
	_, _ = w.Write(body)               // a client that is gone is no error
}

func (a *api) fail(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil {
		return // nobody waits for the answer
	}
	if errors.Is(err, context.DeadlineExceeded) || database.Classify(err) == database.ClassUnavailable {
		a.log.WarnContext(r.Context(), "audit entries unavailable", logs.Error, err)
		httpserver.Problem{Status: http.StatusServiceUnavailable, RetryAfter: time.Second,
			Detail: "the database does not answer"}.Write(w)
		return
	}
	a.log.ErrorContext(r.Context(), "audit entries not readable", logs.Error, err)
	httpserver.Problem{Status: http.StatusInternalServerError}.Write(w)
}

type entry struct {
	EventID      string    `json:"event_id"`
	Type         string    `json:"type"`
	OrderID      string    `json:"order_id"`
	OrderVersion int64     `json:"order_version"`
	OccurredAt   time.Time `json:"occurred_at"`
	RecordedAt   time.Time `json:"recorded_at"`
}

// encode writes the events between the other members by hand: encoding/json would
// compact and escape a RawMessage, and an audit shows what came.
func encode(page auditlog.Page) ([]byte, error) {
	body := []byte(`{"entries":[`)
	for i, e := range page.Entries {
		members, err := json.Marshal(entry{e.EventID, e.Type, e.OrderID, e.OrderVersion, e.OccurredAt, e.RecordedAt})
		if err != nil {
			return nil, fmt.Errorf("encode audit entry at position %d: %w", e.Position, err)
		}
		if i > 0 {
			body = append(body, ',')
		}
		body = append(body, members[:len(members)-1]...)
		body = append(body, `,"event":`...)
		body = append(body, e.Event...)
		body = append(body, '}')
	}
	next := "null"
	if page.Next > 0 {
		next = strconv.Quote(cursor(page.Next))
	}
	return append(body, `],"next":`+next+"}\n"...), nil
}
