package httpapi

import (
	"context"
	"crypto/sha256"
	"errors"
	"net/http"

	"github.com/pillarbox/pillarbox/services/store/internal/intake"
	"github.com/pillarbox/pillarbox/services/store/internal/order"
	"github.com/pillarbox/pillarbox/services/store/internal/orderdb"
	"github.com/pillarbox/pillarbox/shared/httpserver"
)

// caller is whom an idempotency key belongs to. Without API keys all clients are one caller.
const caller = ""

// place is POST /orders.
func (a *api) place(w http.ResponseWriter, r *http.Request) {
	key, p := idempotencyKey(r.Header)
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
	draft, wrong, err := decodeDraft(body)
	if err != nil {
		syntaxProblem(err).Write(w)
		return
	}
	placement, broken := order.CheckDraft(draft)
	if p := fieldProblem(wrong, broken); p != nil {
		p.Write(w)
		return
	}
	var keyed *intake.Keyed
	if key != "" {
		keyed = &intake.Keyed{
			Key: orderdb.Key{Caller: caller, Name: key}, Fingerprint: fingerprint(r.Method, r.URL.Path, body),
		}
		wait, cancel := context.WithTimeout(r.Context(), a.wait)
		leave, err := a.runs.join(wait, keyed.Key, keyed.Fingerprint)
		cancel()
		if err != nil {
			a.fail(w, r, err)
			return
		}
		defer leave()
	}
	answer, err := a.Writer.Place(r.Context(), placement, keyed, trace(r), len(body))
	switch {
	case errors.Is(err, intake.ErrUnknown) && keyed == nil:
		// A 503 invites a repetition, which could make a second order here.
		httpserver.Problem{
			Status: http.StatusInternalServerError,
			Detail: "the connection to the database broke while the order was stored: it may have been placed or not; " +
				"look for it before repeating, and send an Idempotency-Key to make repeating safe",
		}.Write(w)
	case err != nil:
		a.fail(w, r, err)
	default:
		if answer.Replayed {
			w.Header().Set("Idempotency-Replayed", "true")
		}
		w.Header().Set("Location", "/orders/"+answer.OrderID)
		w.Header().Set("ETag", etag(1))
		writeJSON(w, http.StatusCreated, answer.Body)
	}
}

// fingerprint tells whether two requests with one key are the same.
func fingerprint(method, path string, body []byte) []byte {
	h := sha256.New()
	h.Write([]byte(method + "\n" + path + "\n"))
	h.Write(body)
	return h.Sum(nil)
}
