package admin_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/shared/admin"
)

// TestOnlyToolsAct: what a page in a browser could send to the port changes nothing, and shows nothing.
func TestOnlyToolsAct(t *testing.T) {
	t.Parallel()
	checks, acted := &admin.Checks{}, 0
	checks.Mount("mailer", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		acted++
		_, _ = io.WriteString(w, r.URL.Path)
	}))
	h := admin.Handler(checks, prometheus.NewRegistry())
	ask := func(method, path string, headers ...string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(method, path, strings.NewReader("{}"))
		for n := 0; n < len(headers); n += 2 {
			r.Header.Set(headers[n], headers[n+1])
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	tool := []string{admin.HeaderOperator, "ada", "Content-Type", "application/json"}
	for name, bad := range map[string]struct {
		status  int
		headers []string
	}{
		"a form":                  {403, []string{"Content-Type", "application/x-www-form-urlencoded"}},
		"a simple request":        {403, []string{"Content-Type", "text/plain"}},
		"JSON without a name":     {403, []string{"Content-Type", "application/json"}},
		"a name without JSON":     {415, []string{admin.HeaderOperator, "ada", "Content-Type", "text/plain"}},
		"another origin":          {403, append([]string{"Origin", "http://evil.example"}, tool...)},
		"no origin to speak of":   {403, append([]string{"Origin", "null"}, tool...)},
		"a browser without doubt": {403, append([]string{"Sec-Fetch-Site", "same-origin"}, tool...)},
	} {
		w := ask(http.MethodPost, "/admin/mailer/dead/drop", bad.headers...)
		require.Equal(t, bad.status, w.Code, name)
		require.Equal(t, "application/problem+json", w.Header().Get("Content-Type"), name)
	}
	require.Equal(t, 403, ask(http.MethodGet, "/admin/mailer/dead").Code)
	require.Equal(t, 403, ask(http.MethodOptions, "/admin/mailer/dead/drop", "Origin", "http://evil.example").Code)
	require.Zero(t, acted)

	w := ask(http.MethodPost, "/admin/mailer/dead/drop", tool...)
	require.Equal(t, "/dead/drop", w.Body.String())
	require.JSONEq(t, `{"services":["mailer"]}`, ask(http.MethodGet, "/admin/", tool...).Body.String())
	require.Equal(t, 404, ask(http.MethodGet, "/admin/store/dead", tool...).Code)
	require.Equal(t, 503, ask(http.MethodGet, "/ready").Code, "the rest is as before")
}
