package httpserver_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/pillarbox/pillarbox/shared/httpserver"
	"github.com/pillarbox/pillarbox/shared/logs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// run serves h until the returned stop, which gives Run's error.
func run(t *testing.T, c httpserver.Config, h http.Handler) (addr string, stop func() error) {
	t.Helper()
	c.Addr = "127.0.0.1:0"
	s, err := httpserver.Listen(c, h, logs.Discard())
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	return s.Addr(), func() error {
		cancel()
		return <-ended
	}
}

func client(t *testing.T) *http.Client {
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: 10 * time.Second}
}

func TestRequestUnderWayFinishesAtStop(t *testing.T) {
	t.Parallel()
	arrived, release := make(chan struct{}), make(chan struct{})
	addr, stop := run(t, httpserver.Config{}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		close(arrived)
		<-release
		if r.Context().Err() != nil {
			w.WriteHeader(http.StatusTeapot)
		}
	}))
	status := make(chan int, 1)
	c := client(t)
	go func() {
		resp, err := c.Get("http://" + addr)
		if err != nil {
			status <- 0
			return
		}
		_ = resp.Body.Close()
		status <- resp.StatusCode
	}()
	<-arrived
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	require.Eventually(t, func() bool { // new connections are refused while the old request goes on
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	}, 5*time.Second, 5*time.Millisecond)
	close(release)
	require.Equal(t, http.StatusOK, <-status)
	require.NoError(t, <-stopped)
}

func TestDrainEndsAtTheDeadline(t *testing.T) {
	t.Parallel()
	arrived := make(chan struct{})
	addr, stop := run(t, httpserver.Config{DrainTimeout: 20 * time.Millisecond},
		http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			close(arrived)
			<-r.Context().Done()
		}))
	failed := make(chan error, 1)
	c := client(t)
	go func() {
		resp, err := c.Get("http://" + addr)
		if err == nil {
			err = errors.Join(resp.Body.Close())
		}
		failed <- err
	}()
	<-arrived
	require.NoError(t, stop(), "a slow client is no failure of the server")
	require.Error(t, <-failed)
}

func TestSilentConnectionDoesNotHoldUpAStop(t *testing.T) {
	t.Parallel()
	addr, stop := run(t, httpserver.Config{DrainTimeout: time.Hour}, http.NotFoundHandler())
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	defer conn.Close()
	resp, err := client(t).Get("http://" + addr) // accepted after the silent one
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.NoError(t, stop())
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(time.Second)), "closed by the stop, not by a time-out of five seconds")
	_, err = conn.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
}

func TestSlowClientIsCutOff(t *testing.T) {
	t.Parallel()
	addr, stop := run(t, httpserver.Config{HeaderTimeout: 30 * time.Millisecond, ReadTimeout: 60 * time.Millisecond},
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, err := io.ReadAll(r.Body); err != nil {
				w.WriteHeader(http.StatusRequestTimeout)
			}
		}))
	for name, half := range map[string]string{
		"header": "GET / HTTP/1.1\r\nHost: x\r\n",
		"body":   "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc",
	} {
		conn, err := net.Dial("tcp", addr)
		require.NoError(t, err)
		require.NoError(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
		_, err = conn.Write([]byte(half))
		require.NoError(t, err)
		answer, err := io.ReadAll(conn)
		require.NoError(t, err, name) // the server closed, not our deadline
		require.NotContains(t, string(answer), "200 OK", name)
		require.NoError(t, conn.Close())
	}
	require.NoError(t, stop())
}

func TestLongHeaderIsRefused(t *testing.T) {
	t.Parallel()
	addr, stop := run(t, httpserver.Config{MaxHeaderBytes: 1024}, http.HandlerFunc(httpserver.NotFound))
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	_, err = conn.Write([]byte("GET / HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("a", 16<<10) + "\r\n\r\n"))
	require.NoError(t, err)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusRequestHeaderFieldsTooLarge, resp.StatusCode)
	require.NoError(t, resp.Body.Close())
	require.NoError(t, conn.Close())
	require.NoError(t, stop())
}

func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	addr, stop := run(t, httpserver.Config{MaxConns: 1}, http.HandlerFunc(httpserver.NotFound))
	first, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	ask := func(conn net.Conn, wait time.Duration) error {
		require.NoError(t, conn.SetDeadline(time.Now().Add(wait)))
		_, err := conn.Write([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
		require.NoError(t, err)
		_, err = conn.Read(make([]byte, 1))
		return err
	}
	require.NoError(t, ask(first, 10*time.Second))
	second, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	require.Error(t, ask(second, 50*time.Millisecond))
	require.NoError(t, first.Close())
	require.NoError(t, ask(second, 10*time.Second))
	require.NoError(t, second.Close())
	require.NoError(t, stop())
}

func TestListenReportsABadAddress(t *testing.T) {
	t.Parallel()
	_, err := httpserver.Listen(httpserver.Config{Addr: "127.0.0.1:99999"}, http.NotFoundHandler(), logs.Discard())
	require.ErrorContains(t, err, "listen")
	s, err := httpserver.Listen(httpserver.Config{Addr: "127.0.0.1:0"}, http.NotFoundHandler(), logs.Discard())
	require.NoError(t, err)
	_, err = httpserver.Listen(httpserver.Config{Addr: s.Addr()}, http.NotFoundHandler(), logs.Discard())
	require.ErrorContains(t, err, "listen")
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
}

func TestProblem(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	w.Header().Set("ETag", `"1"`)
	httpserver.Problem{
		Status: 503, Detail: "later", RetryAfter: 1200 * time.Millisecond,
		Errors: []httpserver.FieldError{{Pointer: "/a~1b", Detail: "wrong"}},
	}.Write(w)
	require.Equal(t, 503, w.Code)
	require.Equal(t, "application/problem+json", w.Header().Get("Content-Type"))
	require.Equal(t, "2", w.Header().Get("Retry-After"))
	require.Empty(t, w.Header().Get("ETag"))
	require.JSONEq(t, `{"title":"Service Unavailable","status":503,"detail":"later",
		"errors":[{"pointer":"/a~1b","detail":"wrong"}]}`, w.Body.String())
}

func TestProblemQuotesOnlySoMuch(t *testing.T) {
	t.Parallel()
	fields := make([]httpserver.FieldError, 10_000)
	for i := range fields {
		fields[i] = httpserver.FieldError{Pointer: "/" + strings.Repeat("<", 1000), Detail: "is not a field"}
	}
	w := httptest.NewRecorder()
	httpserver.Problem{Status: 400, Errors: fields}.Write(w)
	var got httpserver.Problem
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &got))
	require.Len(t, got.Errors, 2500)
	require.Less(t, len(got.Errors[0].Pointer), 310)
	require.Len(t, fields[0].Pointer, 1001, "the caller's list is left alone")
}

func TestRouterAnswers(t *testing.T) {
	t.Parallel()
	r := chi.NewRouter()
	r.NotFound(httpserver.NotFound)
	r.MethodNotAllowed(httpserver.MethodNotAllowed)
	r.Get("/things/{id}", func(http.ResponseWriter, *http.Request) {})
	r.Patch("/things/{id}", func(http.ResponseWriter, *http.Request) {})
	for _, c := range []struct {
		method, path string
		status       int
		allow        string
	}{
		{"GET", "/other", 404, ""},
		{"DELETE", "/things/1", 405, "GET, HEAD, PATCH"},
		{"BREW", "/things/1", 405, "GET, HEAD, PATCH"},
	} {
		w := httptest.NewRecorder()
		r.ServeHTTP(w, httptest.NewRequest(c.method, c.path, nil))
		require.Equal(t, c.status, w.Code)
		require.Equal(t, c.allow, w.Header().Get("Allow"))
		require.Equal(t, "application/problem+json", w.Header().Get("Content-Type"))
		var p httpserver.Problem
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &p))
		require.Equal(t, c.status, p.Status)
	}
}

func TestMiddlewareNamesTheRequest(t *testing.T) {
	t.Parallel()
	var seen string
	wear := httpserver.Middleware(logs.Discard())
	h := wear(wear(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		seen = httpserver.RequestID(r.Context())
	})))
	ask := func(name, value string) string {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set(name, value)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		require.Equal(t, seen, w.Header().Get("X-Request-ID"))
		return seen
	}
	require.Equal(t, "abc-1", ask("X-Request-ID", "abc-1"))
	require.Equal(t, "abc-2", ask("X-Correlation-ID", "abc-2"))
	for _, bad := range []string{"", "a b", "é", "a\x7f", strings.Repeat("x", 129)} {
		require.Len(t, ask("X-Request-ID", bad), 36)
	}
}

func TestMiddlewareRecovers(t *testing.T) {
	t.Parallel()
	serve := func(h http.HandlerFunc) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		httpserver.Middleware(logs.Discard())(h).ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		return w
	}
	w := serve(func(http.ResponseWriter, *http.Request) { panic("secret") })
	require.Equal(t, 500, w.Code)
	require.NotContains(t, w.Body.String(), "secret")
	require.PanicsWithError(t, http.ErrAbortHandler.Error(), func() {
		serve(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	})
	require.PanicsWithError(t, http.ErrAbortHandler.Error(), func() {
		serve(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte("half"))
			panic("late")
		})
	})
}
