package httpapi

import (
	"net/http"
)

type acceptedView struct {
	Status string `json:"status"`
	ID     string `json:"id"`
}

// accept is POST /orders of a store that answers before it stores.
func (a *api) accept(w http.ResponseWriter, r *http.Request) {
	if len(r.Header.Values("Idempotency-Key")) > 0 {
		badRequest("this store answers before it stores (async intake) and cannot keep what an Idempotency-Key promises; " +
			"send the order with its key to /orders/batch, or leave the key out").Write(w)
		return
	}
	body, release, p := a.readJSON(w, r, false)
	if p != nil {
		release()
		p.Write(w)
		return
	}
	placement, p := decodePlacement(body)
	if p != nil {
		release()
		p.Write(w)
		return
	}
	id, err := a.Writer.Accept(placement, trace(r), len(body), release) // which then is the intake's
	if err != nil {
		release()
		a.fail(w, r, err)
		return
	}
	w.Header().Set("Location", "/orders/"+id)
	writeJSON(w, http.StatusAccepted, render(acceptedView{Status: "accepted", ID: id}))
}
