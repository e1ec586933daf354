package httpapi_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/loyalty/internal/httpapi"
	"github.com/pillarbox/pillarbox/services/loyalty/internal/ledger"
	"github.com/pillarbox/pillarbox/shared/consumer"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
	"github.com/pillarbox/pillarbox/shared/events"
	"github.com/pillarbox/pillarbox/shared/httpserver"
	"github.com/pillarbox/pillarbox/shared/logs"
)

func seed(t *testing.T, db *database.DB, email string, orders int) {
	t.Helper()
	var due []consumer.Event
	for n := range orders {
		at := time.Date(2026, 3, 1, 12, 0, n, 500_000_000, time.UTC)
		order := fmt.Sprintf("o%d", n+1)
		data, err := json.Marshal(events.Order{ID: order, Version: 1, Status: "placed", Currency: "EUR", Total: "9.99",
			Customer: events.Customer{Email: email}, PlacedAt: at})
		require.NoError(t, err)
		due = append(due, consumer.Event{Event: events.Event{ID: fmt.Sprintf("e%d", n+1), Source: events.Source,
			Type: events.TypePlaced, Time: at, Subject: order, Version: 1, Data: data}})
	}
	require.NoError(t, db.Tx(t.Context(), func(ctx context.Context, tx *database.Tx) error {
		return ledger.Record(ctx, tx, due)
	}))
}

func ask(t *testing.T, db *database.DB, method, target string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	httpapi.New(ledger.New(db), logs.Discard()).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, target, nil))
	return w
}

func TestAccount(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		seed(t, db, "Ada@Example.COM", 2)
		for _, path := range []string{"Ada@example.com", "Ada@EXAMPLE.com", "Ada%40example.com", "%41da@example%2Ecom"} {
			w := ask(t, db, http.MethodGet, "/loyalty/accounts/"+path)
			require.Equal(t, http.StatusOK, w.Code, path)
			require.Equal(t, "application/json", w.Header().Get("Content-Type"))
			require.Equal(t, "no-store", w.Header().Get("Cache-Control"))
			require.JSONEq(t, `{"customer":"Ada@example.com","points":18,"next":null,"entries":[
				{"event_id":"e2","order_id":"o2","points":9,"reason":"placed","at":"2026-03-01T12:00:01.5Z"},
				{"event_id":"e1","order_id":"o1","points":9,"reason":"placed","at":"2026-03-01T12:00:00.5Z"}]}`, w.Body.String())
		}
	})
}

// Addresses may hold what a path gives a meaning to; the client escapes them, once.
func TestAddressIsDecodedOnce(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		for n, email := range []string{"a/b@x.example", "a%2Fb@x.example", "a+b@x.example", "a%40b@x.example", "a?b#c@x.example", "jörg@x.example", `"a b"@x.example`} {
			w := ask(t, db, http.MethodGet, "/loyalty/accounts/"+url.PathEscape(email))
			require.Equal(t, http.StatusNotFound, w.Code, email)
			order := fmt.Sprintf("o%d", n)
			data, err := json.Marshal(events.Order{ID: order, Version: 1, Currency: "EUR", Total: "1.00",
				Customer: events.Customer{Email: email}, PlacedAt: time.Unix(1, 0)})
			require.NoError(t, err)
			e := events.Event{ID: order, Type: events.TypePlaced, Time: time.Unix(1, 0), Subject: order, Version: 1, Data: data}
			require.NoError(t, db.Tx(t.Context(), func(ctx context.Context, tx *database.Tx) error {
				return ledger.Record(ctx, tx, []consumer.Event{{Event: e}})
			}))
			w = ask(t, db, http.MethodGet, "/loyalty/accounts/"+url.PathEscape(email))
			require.Equal(t, http.StatusOK, w.Code, email)
			var got struct{ Customer string }
			require.NoError(t, json.Unmarshal(w.Body.Bytes(), &got))
			require.Equal(t, email, got.Customer)
		}
	})
}

func TestUnknownAccountIs404(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		seed(t, db, "ada@example.com", 1)
		for _, path := range []string{"ADA@example.com", "bob@example.com", "ada", "%00@x", "%FF@x", "@x", strings.Repeat("a", 400) + "@x"} {
			w := ask(t, db, http.MethodGet, "/loyalty/accounts/"+path)
			require.Equal(t, http.StatusNotFound, w.Code, path)
			var p httpserver.Problem
			require.NoError(t, json.Unmarshal(w.Body.Bytes(), &p))
			require.Equal(t, "no order named this address", p.Detail, path)
		}
	})
}

func TestPages(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		seed(t, db, "ada@example.com", 61)
		type answer struct {
			Points  int64
			Entries []struct {
				OrderID string `json:"order_id"`
			}
			Next *string
		}
		get := func(query string) (a answer) {
			w := ask(t, db, http.MethodGet, "/loyalty/accounts/ada@example.com"+query)
			require.Equal(t, http.StatusOK, w.Code, w.Body)
			require.NoError(t, json.Unmarshal(w.Body.Bytes(), &a))
			require.EqualValues(t, 61*9, a.Points)
			return a
		}
		require.Len(t, get("").Entries, 50, "the default")
		require.Len(t, get("?limit=200").Entries, 61)
		var orders []string
		for query := "?limit=20"; ; {
			a := get(query)
			for _, e := range a.Entries {
				orders = append(orders, e.OrderID)
			}
			if a.Next == nil {
				break
			}
			query = "?limit=20&after=" + url.QueryEscape(*a.Next)
		}
		require.Len(t, orders, 61)
		for i, order := range orders {
			require.Equal(t, fmt.Sprintf("o%d", 61-i), order)
		}
	})
}

func TestBadParametersAreNamed(t *testing.T) {
	t.Parallel()
	db, _ := databasetest.SQLite(t, "loyalty")
	for query, names := range map[string][]string{
		"limit=0":           {"limit"},
		"limit=201":         {"limit"},
		"limit=1.5":         {"limit"},
		"after=17":          {"after"},
		"after=cDA":         {"after"}, // p0
		"before=x":          {`"before"`},
		"limit=1&limit=2":   {`"limit"`},
		"limit=%zz":         {"query"},
		"limit=x&after=&a=": {"limit", "after", `"a"`},
	} {
		w := ask(t, db, http.MethodGet, "/loyalty/accounts/ada@example.com?"+query)
		require.Equal(t, http.StatusBadRequest, w.Code, query)
		var p httpserver.Problem
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &p))
		for _, name := range names {
			require.Contains(t, p.Detail, name+": ", query)
		}
	}
}

func TestOtherPathsAndMethods(t *testing.T) {
	t.Parallel()
	db, _ := databasetest.SQLite(t, "loyalty")
	seed(t, db, "ada@example.com", 1)
	require.Equal(t, http.StatusOK, ask(t, db, http.MethodHead, "/loyalty/accounts/ada@example.com").Code)
	for target, want := range map[string]int{"GET /loyalty": 404, "GET /loyalty/accounts": 404, "GET /loyalty/accounts/": 404,
		"GET /loyalty/accounts/a/b@x": 404, "DELETE /loyalty/accounts/a@x": 405} {
		method, path, _ := strings.Cut(target, " ")
		w := ask(t, db, method, path)
		require.Equal(t, want, w.Code, target)
		require.Equal(t, httpserver.ContentType, w.Header().Get("Content-Type"), target)
	}
}

func TestDatabaseThatIsAwayIs503(t *testing.T) {
	t.Parallel()
	// Nothing listens there.
	db, err := database.Open("postgres://nobody@127.0.0.1:1/none?sslmode=disable", database.Options{Schema: "loyalty"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	w := ask(t, db, http.MethodGet, "/loyalty/accounts/ada@example.com")
	require.Equal(t, http.StatusServiceUnavailable, w.Code)
	require.Equal(t, "1", w.Header().Get("Retry-After"))
	require.NotContains(t, w.Body.String(), "127.0.0.1")
}

func TestBrokenSchemaIsABare500(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "audit", func(t *testing.T, db *database.DB) { // it has no accounts
		w := ask(t, db, http.MethodGet, "/loyalty/accounts/ada@example.com")
		require.Equal(t, http.StatusInternalServerError, w.Code)
		require.NotContains(t, w.Body.String(), "accounts")
	})
}
