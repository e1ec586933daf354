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

	"github.com/pillarbox/pillarbox/services/audit/internal/auditlog"
	"github.com/pillarbox/pillarbox/services/audit/internal/httpapi"
	"github.com/pillarbox/pillarbox/shared/consumer"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
	"github.com/pillarbox/pillarbox/shared/events"
	"github.com/pillarbox/pillarbox/shared/httpserver"
	"github.com/pillarbox/pillarbox/shared/logs"
)

// raw is an envelope that encoding/json would not have written: spaces, an
// attribute of a later release, characters that it escapes.
const raw = `{ "specversion" : "1.0", "id":"e%d", "later":"<&>  é" }`

func seed(t *testing.T, db *database.DB, order string, n int) {
	t.Helper()
	var due []consumer.Event
	for i := range n {
		due = append(due, consumer.Event{Sequence: uint64(i + 1), Raw: fmt.Appendf(nil, raw, i+1), Event: events.Event{
			ID: fmt.Sprintf("%s-e%d", order, i+1), Type: events.TypePlaced, Subject: order, Version: int64(i + 1),
			Time: time.Date(2026, 3, 1, 12, 0, i, 120_000_000, time.UTC)}})
	}
	require.NoError(t, db.Tx(t.Context(), func(ctx context.Context, tx *database.Tx) error {
		return auditlog.Record(ctx, tx, due)
	}))
}

func ask(t *testing.T, db *database.DB, method, target string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	httpapi.New(auditlog.New(db), logs.Discard()).ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, target, nil))
	return w
}

type answer struct {
	Entries []map[string]json.RawMessage `json:"entries"`
	Next    *string                      `json:"next"`
}

func list(t *testing.T, db *database.DB, query string) answer {
	t.Helper()
	w := ask(t, db, http.MethodGet, "/audit/entries"+query)
	require.Equal(t, http.StatusOK, w.Code, w.Body)
	require.Equal(t, "application/json", w.Header().Get("Content-Type"))
	require.Equal(t, "no-store", w.Header().Get("Cache-Control"))
	require.Equal(t, fmt.Sprint(w.Body.Len()), w.Header().Get("Content-Length"))
	var a answer
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &a))
	return a
}

func TestEntriesOfOneOrder(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "audit", func(t *testing.T, db *database.DB) {
		seed(t, db, "o1", 2)
		seed(t, db, "o2", 1)
		w := ask(t, db, http.MethodGet, "/audit/entries?order=o1")
		require.Contains(t, w.Body.String(), `"event":`+fmt.Sprintf(raw, 1)+"}", "byte for byte")
		a := list(t, db, "?order=o1")
		require.Nil(t, a.Next)
		require.Len(t, a.Entries, 2)
		first := a.Entries[0]
		require.Len(t, first, 7)
		for name, want := range map[string]string{"event_id": `"o1-e1"`, "type": `"order.placed.v1"`, "order_id": `"o1"`,
			"order_version": "1", "occurred_at": `"2026-03-01T12:00:00.12Z"`} {
			require.Equal(t, want, string(first[name]), name)
		}
		var recorded string
		require.NoError(t, json.Unmarshal(first["recorded_at"], &recorded))
		at, err := time.Parse(time.RFC3339Nano, recorded)
		require.NoError(t, err)
		require.Equal(t, time.UTC, at.Location())
	})
}

func TestUnknownOrderHasNoEntries(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "audit", func(t *testing.T, db *database.DB) {
		seed(t, db, "o1", 1)
		w := ask(t, db, http.MethodGet, "/audit/entries?order=o9")
		require.Equal(t, http.StatusOK, w.Code)
		require.JSONEq(t, `{"entries":[],"next":null}`, w.Body.String())
	})
}

func TestPages(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "audit", func(t *testing.T, db *database.DB) {
		seed(t, db, "o1", 30)
		seed(t, db, "o2", 31)
		require.Len(t, list(t, db, "").Entries, 50, "the default")
		require.Len(t, list(t, db, "?limit=200").Entries, 61)
		var ids []string
		for query := "?order=o1&limit=7"; ; {
			a := list(t, db, query)
			for _, e := range a.Entries {
				ids = append(ids, strings.Trim(string(e["event_id"]), `"`))
			}
			if a.Next == nil {
				break
			}
			query = "?order=o1&limit=7&after=" + url.QueryEscape(*a.Next)
		}
		require.Len(t, ids, 30)
		for i, id := range ids {
			require.Equal(t, fmt.Sprintf("o1-e%d", i+1), id)
		}
	})
}

func TestBadParametersAreNamed(t *testing.T) {
	t.Parallel()
	db, _ := databasetest.SQLite(t, "audit")
	for query, names := range map[string][]string{
		"limit=0":                           {"limit"},
		"limit=201":                         {"limit"},
		"limit=ten":                         {"limit"},
		"limit=":                            {"limit"},
		"limit=99999999999999999999":        {"limit"},
		"after=17":                          {"after"},
		"after=":                            {"after"},
		"after=cC0x":                        {"after"}, // p-1
		"after=cDA":                         {"after"}, // p0
		"order=":                            {"order"},
		"order=a%00b":                       {"order"},
		"order=%FF":                         {"order"},
		"order=" + strings.Repeat("a", 65):  {"order"},
		"oder=o1":                           {`"oder"`},
		"order=o1&order=o2":                 {`"order"`},
		"order=%zz":                         {"query"},
		"a;b":                               {"query"},
		"limit=0&after=x&order=&%22%00%FF=": {"limit", "after", "order", `"\"\x00\xff"`},
	} {
		w := ask(t, db, http.MethodGet, "/audit/entries?"+query)
		require.Equal(t, http.StatusBadRequest, w.Code, query)
		require.Equal(t, httpserver.ContentType, w.Header().Get("Content-Type"))
		var p httpserver.Problem
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &p))
		require.Equal(t, http.StatusBadRequest, p.Status)
		for _, name := range names {
			require.Contains(t, p.Detail, name+": ", query)
		}
	}
}

func TestOtherPathsAndMethods(t *testing.T) {
	t.Parallel()
	db, _ := databasetest.SQLite(t, "audit")
	require.Equal(t, http.StatusOK, ask(t, db, http.MethodHead, "/audit/entries").Code)
	for target, want := range map[string]int{"GET /audit": 404, "HEAD /audit": 404, "GET /audit/entries/1": 404, "DELETE /audit/entries": 405, "POST /audit/entries": 405} {
		method, path, _ := strings.Cut(target, " ")
		w := ask(t, db, method, path)
		require.Equal(t, want, w.Code, target)
		require.Equal(t, httpserver.ContentType, w.Header().Get("Content-Type"), target)
	}
}

func TestDatabaseThatIsAwayIs503(t *testing.T) {
	t.Parallel()
	// Nothing listens there.
	db, err := database.Open("postgres://nobody@127.0.0.1:1/none?sslmode=disable", database.Options{Schema: "audit"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	w := ask(t, db, http.MethodGet, "/audit/entries")
	require.Equal(t, http.StatusServiceUnavailable, w.Code)
	require.Equal(t, "1", w.Header().Get("Retry-After"))
	require.NotContains(t, w.Body.String(), "127.0.0.1")
}

func TestBrokenSchemaIsABare500(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) { // it has no table entries
		w := ask(t, db, http.MethodGet, "/audit/entries")
		require.Equal(t, http.StatusInternalServerError, w.Code)
		require.NotContains(t, w.Body.String(), "entries")
	})
}
