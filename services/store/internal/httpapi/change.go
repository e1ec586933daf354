package httpapi

import (
	"context"
	"net/http"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"github.com/pillarbox/pillarbox/services/store/internal/order"
	"github.com/pillarbox/pillarbox/services/store/internal/orderdb"
	"github.com/pillarbox/pillarbox/shared/httpserver"
)

// orderID is the id in the path. Text that is no id at all names no order either.
func orderID(r *http.Request) (string, error) {
	text := chi.URLParam(r, "id")
	if id, err := uuid.Parse(text); err != nil || id.String() != text {
		return "", orderdb.ErrNotFound
	}
	return text, nil
}

// revise is PATCH /orders/{id}.
func (a *api) revise(w http.ResponseWriter, r *http.Request) {
	id, err := orderID(r)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	match, p := ifMatch(r.Header)
	if p == nil && match == nil {
		p = &httpserver.Problem{
			Status: http.StatusPreconditionRequired, Detail: "a change needs If-Match with the order's ETag",
		}
	}
	if p != nil {
		p.Write(w)
		return
	}
	body, release, p := a.readJSON(w, r, false)
	defer release()
	if p != nil {
		p.Write(w)
		return
	}
	draft, wrong, err := decodeRevision(body)
	if err != nil {
		syntaxProblem(err).Write(w)
		return
	}
	// The rules need the currency's decimals, which never change; what may change is checked
	// again under the lock.
	current, err := a.read(r.Context(), id)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	revision, broken := order.CheckRevision(draft, current.Total.Decimals)
	if p := fieldProblem(wrong, broken, maxFieldErrors); p != nil {
		p.Write(w)
		return
	}
	revised, err := a.Writer.Revise(r.Context(), id, match, revision, trace(r), len(body))
	if err != nil {
		a.fail(w, r, err)
		return
	}
	writeOrder(w, revised)
}

// cancel is POST /orders/{id}/cancel.
func (a *api) cancel(w http.ResponseWriter, r *http.Request) {
	id, err := orderID(r)
	if err != nil {
		a.fail(w, r, err)
		return
	}
	match, p := ifMatch(r.Header)
	if p != nil {
		p.Write(w)
		return
	}
	body, release, p := a.readJSON(w, r, true)
	defer release()
	if p != nil {
		p.Write(w)
		return
	}
	if len(body) > 0 {
		wrong, err := decodeNothing(body)
		if err != nil {
			syntaxProblem(err).Write(w)
			return
		}
		if p := fieldProblem(wrong, nil, maxFieldErrors); p != nil {
			p.Write(w)
			return
		}
	}
	cancelled, err := a.Writer.Cancel(r.Context(), id, match, trace(r))
	if err != nil {
		a.fail(w, r, err)
		return
	}
	writeOrder(w, cancelled)
}

func (a *api) read(ctx context.Context, id string) (order.Order, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return orderdb.Get(ctx, a.DB.Read(), id)
}
