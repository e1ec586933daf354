package operate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/pillarbox/pillarbox/shared/admin"
	"github.com/pillarbox/pillarbox/shared/consumer"
)

// maxAnswer bounds what a client reads: a page of letters with their reasons, or one event in base64.
const maxAnswer = 16 << 20

// Client is one service's operator's actions, as the tool calls them.
type Client struct {
	Service string
	base    string // URL up to the service's actions
	http    *http.Client
	who     string
}

// Dial asks the admin ports at addresses (http://host:port) which services they have, and returns a client for
// each. Of several ports with one service (replicas) the first is used.
func Dial(ctx context.Context, addresses []string, who string) ([]*Client, error) {
	h := &http.Client{Timeout: requestTimeout + 5*time.Second}
	var out []*Client
	seen := map[string]bool{}
	for _, address := range addresses {
		base := strings.TrimRight(address, "/") + admin.OperatorPath
		names, err := ask[admin.Services](ctx, h, who, http.MethodGet, base, nil)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", address, err)
		}
		for _, name := range names.Services {
			if !seen[name] {
				out = append(out, &Client{name, base + name, h, who})
			}
			seen[name] = true
		}
	}
	if len(out) == 0 {
		return nil, errors.New("no service there has parked events or dead letters")
	}
	return out, nil
}

// Local is a client without a network, on a handler of this process.
func Local(service string, handler http.Handler, who string) *Client {
	return &Client{service, "http://local", &http.Client{Transport: local{handler}}, who}
}

// local answers requests by calling the handler.
type local struct{ handler http.Handler }

func (l local) RoundTrip(r *http.Request) (*http.Response, error) {
	answer := &answer{header: http.Header{}, status: http.StatusOK}
	l.handler.ServeHTTP(answer, r)
	return &http.Response{
		Status: http.StatusText(answer.status), StatusCode: answer.status, Header: answer.header, Body: io.NopCloser(&answer.body),
	}, nil
}

// answer keeps what a handler writes.
type answer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (a *answer) Header() http.Header         { return a.header }
func (a *answer) WriteHeader(status int)      { a.status = status }
func (a *answer) Write(b []byte) (int, error) { return a.body.Write(b) }

// Parked is a page of parked events.
func (c *Client) Parked(ctx context.Context, order, state, after string, limit int) (Page[consumer.ParkedEvent], error) {
	return get[Page[consumer.ParkedEvent]](ctx, c, "/parked", "order", order, "state", state, "after", after, "limit", number(limit))
}

// ParkedOrder is all that is parked of one order.
func (c *Client) ParkedOrder(ctx context.Context, order string) ([]consumer.ParkedEvent, error) {
	p, err := get[Page[consumer.ParkedEvent]](ctx, c, "/parked/order", "order", order)
	return p.Items, err
}

// Retry makes events due now.
func (c *Client) Retry(ctx context.Context, ask Retry) (int64, error) {
	n, err := post[Retried](ctx, c, "/parked/retry", ask)
	return n.Retried, err
}

// Skip lets an order go on.
func (c *Client) Skip(ctx context.Context, ask Skip) error {
	_, err := post[Done](ctx, c, "/parked/skip", ask)
	return err
}

// Letters is a page of dead letters.
func (c *Client) Letters(ctx context.Context, f consumer.LetterFilter, after string, limit int) (Page[consumer.DeadLetter], error) {
	since := ""
	if !f.Since.IsZero() {
		since = f.Since.UTC().Format(time.RFC3339Nano)
	}
	return get[Page[consumer.DeadLetter]](ctx, c, "/dead", "order", f.Order, "since", since, "reason", f.Reason, "after", after, "limit", number(limit))
}

// Letter is one dead letter, whole.
func (c *Client) Letter(ctx context.Context, id string) (consumer.DeadLetter, error) {
	return get[consumer.DeadLetter](ctx, c, "/dead/letter", "id", id)
}

// Drop removes a dead letter for good.
func (c *Client) Drop(ctx context.Context, ask Drop) error {
	_, err := post[Done](ctx, c, "/dead/drop", ask)
	return err
}

// StartRedrive starts a redrive.
func (c *Client) StartRedrive(ctx context.Context, ask Start) (consumer.Redrive, error) {
	return post[consumer.Redrive](ctx, c, "/redrives", ask)
}

// Redrives are those that are remembered, the newest first.
func (c *Client) Redrives(ctx context.Context) ([]consumer.Redrive, error) {
	p, err := get[Page[consumer.Redrive]](ctx, c, "/redrives")
	return p.Items, err
}

// Redrive is one of them, with what failed; without an id the newest.
func (c *Client) Redrive(ctx context.Context, id string) (consumer.Redrive, error) {
	return get[consumer.Redrive](ctx, c, "/redrives/one", "id", id)
}

// CancelRedrive ends a redrive.
func (c *Client) CancelRedrive(ctx context.Context, ask Cancel) error {
	_, err := post[Done](ctx, c, "/redrives/cancel", ask)
	return err
}

// Actions is a page of what operators did, the newest first.
func (c *Client) Actions(ctx context.Context, after string, limit int) (Page[consumer.Action], error) {
	return get[Page[consumer.Action]](ctx, c, "/actions", "after", after, "limit", number(limit))
}

func number(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

// get asks with pairs of names and values; empty values are left out.
func get[T any](ctx context.Context, c *Client, path string, pairs ...string) (T, error) {
	q := url.Values{}
	for n := 0; n < len(pairs); n += 2 {
		if pairs[n+1] != "" {
			q.Set(pairs[n], pairs[n+1])
		}
	}
	return ask[T](ctx, c.http, c.who, http.MethodGet, c.base+path+"?"+q.Encode(), nil)
}

func post[T any](ctx context.Context, c *Client, path string, question any) (T, error) {
	return ask[T](ctx, c.http, c.who, http.MethodPost, c.base+path, question)
}

// ask returns a refusal with the error of package consumer that it stands for.
func ask[T any](ctx context.Context, client *http.Client, who, method, address string, question any) (T, error) {
	v, err := admin.Ask[T](ctx, client, who, method, address, question, maxAnswer)
	var refusal *admin.Refusal
	if !errors.As(err, &refusal) {
		return v, err
	}
	for status, kind := range map[int]error{
		http.StatusNotFound: consumer.ErrNotFound, http.StatusConflict: consumer.ErrRefused, http.StatusBadRequest: consumer.ErrInvalid,
	} {
		if rest, ok := strings.CutPrefix(refusal.Detail, kind.Error()+": "); ok && refusal.Status == status {
			return v, fmt.Errorf("%w: %s", kind, rest)
		}
	}
	return v, err
}
