package httpapi

import (
	"crypto/sha256"
	"net/http"

	"github.com/pillarbox/pillarbox/services/store/internal/intake"
	"github.com/pillarbox/pillarbox/services/store/internal/orderdb"
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
	placement, p := decodePlacement(body)
	if p != nil {
		p.Write(w)
		return
	}
	var keyed *intake.Keyed
	if key != "" {
		keyed = &intake.Keyed{
			Key: orderdb.Key{Caller: caller, Name: key}, Fingerprint: fingerprint(r.Method, r.URL.Path, body),
		}
	}
	answer, err := a.placeOnce(r.Context(), placement, keyed, trace(r), len(body))
	if err != nil {
		p, listed := placementProblem(err, keyed != nil)
		a.refuse(w, r, p, listed, err)
		return
	}
	if answer.Replayed {
		w.Header().Set("Idempotency-Replayed", "true")
	}
	w.Header().Set("Location", "/orders/"+answer.OrderID)
	w.Header().Set(headerETag, etag(1))
	writeJSON(w, http.StatusCreated, answer.Body)
}

// fingerprint tells whether two requests with one key are the same.
func fingerprint(method, path string, body []byte) []byte {
	h := sha256.New()
	h.Write([]byte(method + "\n" + path + "\n"))
	h.Write(body)
	return h.Sum(nil)
}
