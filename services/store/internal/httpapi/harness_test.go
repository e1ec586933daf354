package httpapi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/pb33f/libopenapi"
	validator "github.com/pb33f/libopenapi-validator"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/pillarbox/pillarbox/services/store/internal/httpapi"
	"github.com/pillarbox/pillarbox/services/store/internal/intake"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/httpserver"
	"github.com/pillarbox/pillarbox/shared/logs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// shop is the interface over a running intake on one database; two on one database are two replicas.
type shop struct {
	t       *testing.T
	handler http.Handler
	intake  *intake.Intake
	spec    validator.Validator
	wakes   *atomic.Int64
	refuse  *atomic.Pointer[error] // what Admit answers
	stop    func()
}

func open(t *testing.T, db *database.DB, change ...func(*intake.Config, *httpapi.Config)) *shop {
	t.Helper()
	var ic intake.Config
	var hc httpapi.Config
	for _, c := range change {
		c(&ic, &hc)
	}
	s := &shop{t: t, wakes: &atomic.Int64{}, refuse: &atomic.Pointer[error]{}}
	admit := func() error {
		if err := s.refuse.Load(); err != nil {
			return *err
		}
		return nil
	}
	var err error
	reg := prometheus.NewRegistry()
	s.intake, err = intake.New(ic, intake.Deps{
		DB: db, Log: logs.Discard(), Registry: reg,
		Admit: admit, Wake: func() { s.wakes.Add(1) }, Render: httpapi.RenderOrder,
	})
	require.NoError(t, err)
	s.handler, err = httpapi.New(hc, httpapi.Deps{DB: db, Writer: s.intake, Log: logs.Discard(), Registry: reg})
	require.NoError(t, err)
	s.spec = spec(t)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.intake.Run(ctx) }()
	s.stop = func() {
		if cancel != nil {
			cancel()
			cancel = nil
			require.NoError(t, <-done)
		}
	}
	t.Cleanup(s.stop)
	return s
}

func spec(t *testing.T) validator.Validator {
	t.Helper()
	text, err := os.ReadFile("openapi.yaml")
	require.NoError(t, err)
	doc, err := libopenapi.NewDocument(text)
	require.NoError(t, err)
	v, errs := validator.NewValidator(doc)
	require.Empty(t, errs)
	ok, invalid := v.ValidateDocument()
	require.True(t, ok, "%v", invalid)
	return v
}

// answer is what came back, already compared with the description.
type answer struct {
	t      *testing.T
	status int
	header http.Header
	body   []byte
}

// do sends a request; header is pairs of a name and a value. JSON is the content type of a body unless header says otherwise.
func (s *shop) do(method, path, body string, header ...string) answer {
	s.t.Helper()
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Del(header[i])
		if header[i+1] != "-" {
			r.Header.Add(header[i], header[i+1])
		}
	}
	return s.send(r, body)
}

func (s *shop) send(r *http.Request, body string) answer {
	s.t.Helper()
	w := httptest.NewRecorder()
	s.handler.ServeHTTP(w, r)
	a := answer{s.t, w.Code, w.Header(), w.Body.Bytes()}
	s.compare(r, body, a)
	return a
}

// compare holds the answer, and a request that was taken, against the description.
func (s *shop) compare(r *http.Request, body string, a answer) {
	s.t.Helper()
	require.NotEmpty(s.t, a.header.Get("X-Request-ID"))
	if a.status >= 400 {
		require.Equal(s.t, httpserver.ContentType, a.header.Get("Content-Type"))
		require.NotRegexp(s.t, `(?i)select|insert|sqlstate|constraint|/work|\.go\b|pgx|sqlite`, string(a.body))
	}
	if a.status == http.StatusMethodNotAllowed || r.Method == http.MethodHead ||
		a.status == http.StatusNotFound && (r.URL.Path == "/" || r.URL.Path == "/orders/") {
		return // not part of any description
	}
	r, body, a = asArrays(r, body, a)
	if a.status < 300 && !bytes.Contains(a.body, []byte(`"result":"refused"`)) {
		again := r.Clone(r.Context())
		again.Body = io.NopCloser(strings.NewReader(body))
		if body == "" { // then its type says nothing
			again.Header.Del("Content-Type")
		}
		ok, errs := s.spec.ValidateHttpRequest(again)
		require.True(s.t, ok, "request does not match openapi.yaml: %v", errs)
	}
	again := r.Clone(r.Context())
	again.Body = io.NopCloser(strings.NewReader(body))
	ok, errs := s.spec.ValidateHttpResponse(again, &http.Response{
		StatusCode: a.status, Header: a.header, Body: io.NopCloser(bytes.NewReader(a.body)), Request: r,
	})
	require.True(s.t, ok, "%s %s %d does not match openapi.yaml: %v", r.Method, r.URL.Path, a.status, errs)
}

// asArrays puts lines into arrays, as the other form of a batch has them: the validator has no notion of lines.
func asArrays(r *http.Request, body string, a answer) (*http.Request, string, answer) {
	if a.status != http.StatusOK || a.header.Get("Content-Type") != ndjson {
		return r, body, a
	}
	r = r.Clone(r.Context())
	r.Header.Set("Content-Type", "application/json")
	join := func(text string) string {
		var lines []string
		for line := range strings.Lines(text) {
			if line = strings.TrimSpace(line); line != "" {
				lines = append(lines, line)
			}
		}
		return "[" + strings.Join(lines, ",") + "]"
	}
	a.header = a.header.Clone()
	a.header.Set("Content-Type", "application/json")
	a.body = []byte(`{"created":0,"replayed":0,"refused":0,"results":` + join(string(a.body)) + "}")
	return r, join(body), a
}

func (a answer) is(status int) answer {
	a.t.Helper()
	require.Equal(a.t, status, a.status, "%s", a.body)
	return a
}

func (a answer) order() view {
	a.t.Helper()
	var v view
	require.NoError(a.t, json.Unmarshal(a.body, &v))
	return v
}

// pointers are the wrong fields that a problem names.
func (a answer) pointers() []string {
	a.t.Helper()
	var p httpserver.Problem
	require.NoError(a.t, json.Unmarshal(a.body, &p))
	require.Equal(a.t, a.status, p.Status)
	pointers := []string{}
	for _, e := range p.Errors {
		require.NotEmpty(a.t, e.Detail)
		pointers = append(pointers, e.Pointer)
	}
	return pointers
}

type view struct {
	ID       string `json:"id"`
	Version  int64  `json:"version"`
	Status   string `json:"status"`
	Customer struct {
		Email, Name, Locale string
	} `json:"customer"`
	Currency  string `json:"currency"`
	Total     string `json:"total"`
	Reference string `json:"reference"`
	PlacedAt  string `json:"placed_at"`
	Items     []struct {
		SKU       string `json:"sku"`
		Name      string `json:"name"`
		Quantity  int64  `json:"quantity"`
		UnitPrice string `json:"unit_price"`
	} `json:"items"`
}

const tea = `{"customer":{"email":"ada@example.com","name":"Ada Lovelace","locale":"en"},"currency":"EUR",` +
	`"items":[{"sku":"TEA-01","name":"Green tea","quantity":2,"unit_price":"4.50"}],"reference":"web-1001"}`

// count is the number of rows of a table.
func count(t *testing.T, db *database.DB, table string) (n int) {
	t.Helper()
	require.NoError(t, db.Read().QueryRowContext(t.Context(), "SELECT count(*) FROM "+table).Scan(&n))
	return n
}
