package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/google/uuid"

	"github.com/pillarbox/pillarbox/services/store/internal/orderdb"
	"github.com/pillarbox/pillarbox/shared/httpserver"
)

// The sizes of a page.
const (
	defaultOrders, maxOrders = 50, 200
	defaultEvents, maxEvents = 500, 1000
)

// get is GET /orders/{id}.
func (a *api) get(w http.ResponseWriter, r *http.Request) {
	id, err := orderID(r)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	o, err := a.read(r.Context(), id)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	if notModified(r.Header, o.Version) {
		w.Header().Set(headerETag, etag(o.Version))
		w.WriteHeader(http.StatusNotModified)
		return
	}
	writeOrder(w, o)
}

// list is GET /orders: the newest first.
func (a *api) list(w http.ResponseWriter, r *http.Request) {
	q, problem := query(r.URL.RawQuery)
	if problem != nil {
		problem.Write(w)
		return
	}
	limit, problem := number(q, "limit", defaultOrders, 1, maxOrders)
	if problem != nil {
		problem.Write(w)
		return
	}
	after := q["after"]
	if id, err := uuid.Parse(after); after != "" && (err != nil || id.String() != after) {
		badRequest("query parameter after must be the next of another page").Write(w)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), readTimeout)
	defer cancel()
	orders, more, err := orderdb.List(ctx, a.DB.Read(), after, int(limit))
	if err != nil {
		a.fail(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, renderPage(orders, more))
}

// timeline is GET /orders/{id}/timeline.
func (a *api) timeline(w http.ResponseWriter, r *http.Request) {
	id, err := orderID(r)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	q, problem := query(r.URL.RawQuery)
	if problem != nil {
		problem.Write(w)
		return
	}
	limit, problem := number(q, "limit", defaultEvents, 1, maxEvents)
	if problem != nil {
		problem.Write(w)
		return
	}
	after, problem := number(q, "after", 0, 0, 1<<31)
	if problem != nil {
		problem.Write(w)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), readTimeout)
	defer cancel()
	events, more, err := orderdb.Timeline(ctx, a.DB.Read(), id, after, int(limit))
	if err == nil && len(events) == 0 {
		_, err = orderdb.Get(ctx, a.DB.Read(), id) // no such order, or only the end of the pages
	}
	if err != nil {
		a.fail(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, renderTimeline(events, more))
}

// query reads the parameters limit and after, each at most once. Others are refused: a misspelt
// one would silently give another page.
func query(raw string) (map[string]string, *httpserver.Problem) {
	values, err := url.ParseQuery(raw)
	if err != nil {
		return nil, badRequest("the query cannot be read")
	}
	q := map[string]string{}
	for name, v := range values {
		if name != "limit" && name != "after" {
			return nil, badRequest("the only query parameters are limit and after")
		}
		if len(v) != 1 || v[0] == "" {
			return nil, badRequest(fmt.Sprintf("query parameter %s must come once, with a value", name))
		}
		q[name] = v[0]
	}
	return q, nil
}

func number(q map[string]string, name string, def, low, high int64) (int64, *httpserver.Problem) {
	text, given := q[name]
	if !given {
		return def, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < low || n > high {
		return 0, badRequest(fmt.Sprintf("query parameter %s must be a number from %d to %d", name, low, high))
	}
	return n, nil
}
