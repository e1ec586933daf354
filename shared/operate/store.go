package operate

import (
	"context"
	"fmt"
	"net/http"
	"strconv"

	"github.com/go-chi/chi/v5"

	"github.com/pillarbox/pillarbox/shared/consumer"
	"github.com/pillarbox/pillarbox/shared/httpserver"
	"github.com/pillarbox/pillarbox/shared/logs"
)

// Store is the service whose history fills gaps.
const Store = "store"

// StoredEvent is an event of the store's history.
type StoredEvent struct {
	ID      string `json:"id"`
	Version int64  `json:"version"`
	Body    string `json:"body"` // events are UTF-8
}

// Fill hands an event to a consumer that misses it.
type Fill struct {
	Order  string `json:"order"`
	Body   string `json:"body"`
	Reason string `json:"reason,omitempty"`
}

// maxStored is the most events of one page.
const maxStored = 50

// StoreHandler serves the history of orders. read returns the events of an order from one version to another, at
// most limit.
func StoreHandler(read func(r *http.Request, order string, from, to int64, limit int) ([]StoredEvent, error)) http.Handler {
	h := &handler{log: logs.Discard()}
	r := chi.NewRouter()
	r.NotFound(httpserver.NotFound)
	r.MethodNotAllowed(httpserver.MethodNotAllowed)
	r.Get("/events", h.answer(func(r *http.Request) (any, error) {
		from, err := strconv.ParseInt(r.FormValue("from"), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%w: from must be a version", consumer.ErrInvalid)
		}
		to, err := strconv.ParseInt(r.FormValue("to"), 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%w: to must be a version", consumer.ErrInvalid)
		}
		return one(read(r, r.FormValue("order"), from, to, maxStored))
	}))
	return r
}

// Events returns the first events of an order from one version to another, as many as fit into a page. Only the
// store's client has them.
func (c *Client) Events(ctx context.Context, order string, from, to int64) ([]StoredEvent, error) {
	p, err := get[Page[StoredEvent]](ctx, c, "/events", "order", order,
		"from", strconv.FormatInt(from, 10), "to", strconv.FormatInt(to, 10))
	return p.Items, err
}

// Fill hands the consumer an event that it misses.
func (c *Client) Fill(ctx context.Context, ask Fill) error {
	_, err := post[Done](ctx, c, "/parked/fill", ask)
	return err
}
