package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
)

// Order is what the store answers, as far as the scenarios look at it.
type Order struct {
	ID       string `json:"id"`
	Version  int64  `json:"version"`
	Status   string `json:"status"`
	Total    string `json:"total"`
	Customer struct {
		Email string `json:"email"`
	} `json:"customer"`
}

// Client talks to the store as a careful shop does: every request that places
// an order carries an idempotency key, refusals that ask for it (409, 429, 503)
// and broken connections are tried again, and an order counts only once its 2xx
// has been read. It writes what was acknowledged into Truth.
type Client struct {
	// Bases are the stores' addresses; requests go round them.
	Bases []string
	Truth *Truth
	// GiveUp bounds the tries of one request. Default 30 s.
	GiveUp time.Duration
	// OnRetry, when set, is told why a request is tried again.
	OnRetry func(why error)

	http http.Client
	turn atomic.Uint64
	// Retried counts answers and errors that were tried again.
	Retried atomic.Int64
}

// NewClient returns a client of the stores.
func NewClient(truth *Truth, bases ...string) *Client {
	return &Client{Bases: bases, Truth: truth, GiveUp: 30 * time.Second, http: http.Client{Timeout: 5 * time.Second}}
}

// Body is the request body of an order: quantity pieces at price.
func Body(email, currency string, quantity int, price string) map[string]any {
	return map[string]any{
		"customer": map[string]any{"email": email, "name": "Ada Lovelace"},
		"currency": currency,
		"items":    []map[string]any{{"sku": "TEA-01", "name": "Green tea", "quantity": quantity, "unit_price": price}},
	}
}

// Place places an order under a key of its own.
func (c *Client) Place(ctx context.Context, body any) (Order, error) {
	return c.PlaceWithKey(ctx, uuid.NewString(), body)
}

// PlaceWithKey places an order under the key, until it is acknowledged.
func (c *Client) PlaceWithKey(ctx context.Context, key string, body any) (Order, error) {
	o, err := c.do(ctx, http.MethodPost, "/orders", http.Header{"Idempotency-Key": {key}}, body)
	if err == nil {
		c.Truth.Acknowledge(o)
	}
	return o, err
}

// Change sets the order's quantity. A lost answer is settled by reading the
// order: the version tells whether the change took place.
func (c *Client) Change(ctx context.Context, o Order, quantity int, price string) (Order, error) {
	body := map[string]any{"items": []map[string]any{{"sku": "TEA-01", "name": "Green tea", "quantity": quantity, "unit_price": price}}}
	changed, err := c.do(ctx, http.MethodPatch, "/orders/"+o.ID, http.Header{"If-Match": {fmt.Sprintf("%q", fmt.Sprint(o.Version))}}, body)
	if refused := (*Refused)(nil); errors.As(err, &refused) && refused.Status == http.StatusPreconditionFailed {
		// An earlier try of this very request got through: nobody else changes this order.
		changed, err = c.Get(ctx, o.ID)
		if err == nil && changed.Version != o.Version+1 {
			err = fmt.Errorf("order %s: version %d after changing version %d", o.ID, changed.Version, o.Version)
		}
	}
	if err == nil {
		c.Truth.Acknowledge(changed)
	}
	return changed, err
}

// Cancel cancels the order; it may be repeated.
func (c *Client) Cancel(ctx context.Context, o Order) (Order, error) {
	cancelled, err := c.do(ctx, http.MethodPost, "/orders/"+o.ID+"/cancel", nil, nil)
	if err == nil {
		c.Truth.Acknowledge(cancelled)
	}
	return cancelled, err
}

// Get reads an order.
func (c *Client) Get(ctx context.Context, id string) (Order, error) {
	return c.do(ctx, http.MethodGet, "/orders/"+id, nil, nil)
}

// Refused is an answer that trying again would not change.
type Refused struct {
	Status int
	Body   string
}

func (r *Refused) Error() string { return fmt.Sprintf("status %d: %s", r.Status, r.Body) }

// TryAgain is an answer that asks for another try.
type TryAgain struct{ Status int }

func (a *TryAgain) Error() string { return fmt.Sprintf("status %d", a.Status) }

// do sends the request until it gets a 2xx, a refusal, or the deadline.
func (c *Client) do(ctx context.Context, method, path string, header http.Header, body any) (Order, error) {
	var encoded []byte
	if body != nil {
		var err error
		if encoded, err = json.Marshal(body); err != nil {
			return Order{}, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, c.GiveUp)
	defer cancel()
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 200*time.Millisecond) {
		o, err := c.once(ctx, method, path, header, encoded)
		if refused := (*Refused)(nil); err == nil || errors.As(err, &refused) {
			return o, err
		}
		c.Retried.Add(1)
		if c.OnRetry != nil {
			c.OnRetry(err)
		}
		select {
		case <-ctx.Done():
			return Order{}, fmt.Errorf("%s %s: gave up: %w", method, path, err)
		case <-time.After(pause):
		}
	}
}

func (c *Client) once(ctx context.Context, method, path string, header http.Header, body []byte) (Order, error) {
	base := c.Bases[int(c.turn.Add(1))%len(c.Bases)]
	request, err := http.NewRequestWithContext(ctx, method, base+path, bytes.NewReader(body))
	if err != nil {
		return Order{}, err
	}
	for name, values := range header {
		request.Header[name] = values
	}
	if len(body) > 0 {
		request.Header.Set("Content-Type", "application/json")
	}
	answer, err := c.http.Do(request)
	if err != nil {
		return Order{}, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, 2<<20))
	if err != nil {
		return Order{}, err
	}
	switch answer.StatusCode {
	case http.StatusOK, http.StatusCreated:
		var o Order
		if err := json.Unmarshal(text, &o); err != nil {
			return Order{}, fmt.Errorf("decode answer: %w", err)
		}
		return o, nil
	case http.StatusConflict, http.StatusTooManyRequests, http.StatusServiceUnavailable:
		if answer.Header.Get("Retry-After") != "" {
			return Order{}, &TryAgain{answer.StatusCode}
		}
	}
	return Order{}, &Refused{answer.StatusCode, string(text)}
}
