package httpapi

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/pillarbox/pillarbox/services/store/internal/order"
	"github.com/pillarbox/pillarbox/services/store/internal/orderdb"
)

type orderView struct {
	ID        string       `json:"id"`
	Version   int64        `json:"version"`
	Status    order.Status `json:"status"`
	Customer  customerView `json:"customer"`
	Currency  string       `json:"currency"`
	Items     []itemView   `json:"items"`
	Total     string       `json:"total"`
	Reference string       `json:"reference,omitempty"`
	PlacedAt  time.Time    `json:"placed_at"`
}

type customerView struct {
	Email  string `json:"email"`
	Name   string `json:"name,omitempty"`
	Locale string `json:"locale,omitempty"`
}

type itemView struct {
	SKU       string `json:"sku"`
	Name      string `json:"name,omitempty"`
	Quantity  int64  `json:"quantity"`
	UnitPrice string `json:"unit_price"`
}

type pageView struct {
	Orders []orderView `json:"orders"`
	Next   *string     `json:"next"`
}

type timelineView struct {
	Events []eventView `json:"events"`
	Next   *int64      `json:"next"`
}

type eventView struct {
	EventID   string    `json:"event_id"`
	Type      string    `json:"type"`
	Version   int64     `json:"version"`
	At        time.Time `json:"at"`
	Published bool      `json:"published"`
}

func viewOrder(o order.Order) orderView {
	v := orderView{
		ID: o.ID, Version: o.Version, Status: o.Status,
		Customer: customerView{Email: o.Customer.Email, Name: o.Customer.Name, Locale: o.Customer.Locale},
		Currency: o.Currency, Items: make([]itemView, len(o.Items)), Total: o.Total.String(),
		Reference: o.Reference, PlacedAt: o.PlacedAt,
	}
	for i, item := range o.Items {
		v.Items[i] = itemView{item.SKU, item.Name, item.Quantity, item.UnitPrice.String()}
	}
	return v
}

// RenderOrder is the order's JSON, as every answer shows it.
func RenderOrder(o order.Order) []byte { return render(viewOrder(o)) }

func renderPage(orders []order.Order, more bool) []byte {
	page := pageView{Orders: make([]orderView, len(orders))}
	for i, o := range orders {
		page.Orders[i] = viewOrder(o)
	}
	if more {
		page.Next = &page.Orders[len(orders)-1].ID
	}
	return render(page)
}

func renderTimeline(events []orderdb.TimelineEvent, more bool) []byte {
	view := timelineView{Events: make([]eventView, len(events))}
	for i, e := range events {
		view.Events[i] = eventView{e.ID, e.Type, e.Version, e.At, e.Published}
	}
	if more {
		view.Next = &view.Events[len(events)-1].Version
	}
	return render(view)
}

func render(view any) []byte {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false) // the answer is JSON, never part of a page
	if err := e.Encode(view); err != nil {
		panic(err) // the views always encode
	}
	return out.Bytes()
}

func writeOrder(w http.ResponseWriter, o order.Order) {
	w.Header().Set(headerETag, etag(o.Version))
	writeJSON(w, http.StatusOK, RenderOrder(o))
}

func writeJSON(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("Cache-Control", "private, no-cache") // customers' data: not for shared caches, always asked for again
	w.WriteHeader(status)
	_, _ = w.Write(body) // a client that is gone
}
