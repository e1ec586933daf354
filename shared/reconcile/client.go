package reconcile

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/pillarbox/pillarbox/shared/admin"
)

const (
	// maxAnswer bounds what a client reads: a page of events or states.
	maxAnswer = 8 << 20
	// dialTimeout bounds the first question to an admin port.
	dialTimeout = 5 * time.Second
)

// ErrNoStore: none of the admin ports has a store that can be asked.
var ErrNoStore = errors.New("the store is not there: add its admin address")

// remote is one service's account at an admin port.
type remote struct {
	name string
	base string
	who  string
	http *http.Client
}

// Dial asks the admin ports at addresses (http://host:port) which accounts they have. Of several ports with one
// service (replicas) the first that answers is used. Those that do not answer are returned as silent. Close it with
// CloseIdleConnections of client.
func Dial(ctx context.Context, client *http.Client, addresses []string, who string) (store Store, subscribers []Subscriber, silent []Silence, err error) {
	seen := map[string]bool{}
	for _, address := range addresses {
		found, quiet := dialOne(ctx, remote{who: who, http: client}, strings.TrimRight(address, "/"))
		silent = append(silent, quiet...)
		for _, f := range found {
			if seen[f.name] {
				continue
			}
			seen[f.name] = true
			if f.store {
				store = storeClient{f.remote}
			} else {
				subscribers = append(subscribers, subscriberClient{f.remote})
			}
		}
	}
	if store == nil {
		if len(silent) > 0 {
			return nil, nil, silent, fmt.Errorf("%w (%s: %s)", ErrNoStore, silent[0].Who, silent[0].Why)
		}
		return nil, nil, silent, ErrNoStore
	}
	return store, subscribers, silent, nil
}

type dialed struct {
	remote
	store bool
}

func dialOne(ctx context.Context, r remote, address string) (found []dialed, silent []Silence) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	r.base = address + admin.OperatorPath
	services, err := ask[admin.Services](ctx, r, http.MethodGet, "", nil)
	if err != nil {
		return nil, []Silence{{address, err.Error()}}
	}
	for _, name := range services.Services {
		at := r
		at.name, at.base = name, r.base+name+pathPrefix
		is, err := ask[role](ctx, at, http.MethodGet, "role", nil)
		if err != nil {
			silent = append(silent, Silence{name, "it gives no account: " + err.Error()})
			continue
		}
		found = append(found, dialed{at, is.Role == roleStore})
	}
	return found, silent
}

type storeClient struct{ remote }

func (c storeClient) Overview(ctx context.Context, w Window) (Overview, error) {
	return ask[Overview](ctx, c.remote, http.MethodGet, "overview?"+w.query(), nil)
}

func (c storeClient) Events(ctx context.Context, w Window, after, upTo int64) ([]Event, error) {
	return ask[[]Event](ctx, c.remote, http.MethodGet,
		"events?"+w.query("after", strconv.FormatInt(after, 10), "up_to", strconv.FormatInt(upTo, 10)), nil)
}

func (c storeClient) Orders(ctx context.Context, w Window, after string) (OrderPage, error) {
	return ask[OrderPage](ctx, c.remote, http.MethodGet, "orders?"+w.query("after", after), nil)
}

func (c storeClient) Places(ctx context.Context, subscriber string, events []Event) ([]Place, error) {
	return ask[[]Place](ctx, c.remote, http.MethodPost, "places", placesQuestion{subscriber, events})
}

func (c storeClient) Unknown(ctx context.Context, ids []string) ([]string, error) {
	return ask[[]string](ctx, c.remote, http.MethodPost, "unknown", unknownQuestion{ids})
}

type subscriberClient struct{ remote }

func (c subscriberClient) Name() string { return c.name }

func (c subscriberClient) States(ctx context.Context, events []Event) (Answer, error) {
	return ask[Answer](ctx, c.remote, http.MethodPost, "states", statesQuestion{events})
}

func (c subscriberClient) Held(ctx context.Context, w Window, cursor string) (HeldPage, error) {
	return ask[HeldPage](ctx, c.remote, http.MethodGet, "held?"+w.query("cursor", cursor), nil)
}

// query is the window with pairs of names and values; empty values are left out.
func (w Window) query(pairs ...string) string {
	q := url.Values{}
	if !w.Since.IsZero() {
		q.Set("since", w.Since.UTC().Format(time.RFC3339Nano))
	}
	for n, pairs := 0, append(pairs, "order", w.Order); n < len(pairs); n += 2 {
		if pairs[n+1] != "" {
			q.Set(pairs[n], pairs[n+1])
		}
	}
	return q.Encode()
}

func ask[T any](ctx context.Context, r remote, method, path string, question any) (T, error) {
	return admin.Ask[T](ctx, r.http, r.who, method, r.base+path, question, maxAnswer)
}
