package reconcile_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/pillarbox/pillarbox/shared/admin"
	"github.com/pillarbox/pillarbox/shared/logs"
	"github.com/pillarbox/pillarbox/shared/reconcile"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a store and its subscribers as they say they are. It implements Store.
type world struct {
	mu         sync.Mutex
	events     []reconcile.Event
	overview   reconcile.Overview
	places     map[string]reconcile.Place // by event
	broken     []reconcile.BrokenOrder
	looks      int // how often places were asked for
	afterLooks func(looks int)
}

func (w *world) Overview(context.Context, reconcile.Window) (reconcile.Overview, error) {
	w.overview.UpTo = int64(len(w.events))
	return w.overview, nil
}

func (w *world) Events(_ context.Context, window reconcile.Window, after, upTo int64) ([]reconcile.Event, error) {
	page := []reconcile.Event{}
	for _, e := range w.events[after:upTo] {
		if window.Order == "" || window.Order == e.Order {
			page = append(page, e)
		}
	}
	return page[:min(len(page), reconcile.MaxEvents)], nil
}

func (w *world) Orders(context.Context, reconcile.Window, string) (reconcile.OrderPage, error) {
	return reconcile.OrderPage{Checked: 1, Broken: w.broken}, nil
}

func (w *world) Places(_ context.Context, subscriber string, events []reconcile.Event) ([]reconcile.Place, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.looks++; w.afterLooks != nil {
		w.afterLooks(w.looks)
	}
	out := make([]reconcile.Place, len(events))
	for n, e := range events {
		out[n] = w.places[e.ID]
		if out[n] == "" {
			out[n] = reconcile.Gone
		}
	}
	return out, nil
}

func (w *world) Unknown(_ context.Context, ids []string) ([]string, error) {
	unknown := []string{}
	for _, id := range ids {
		if id[0] == 'x' {
			unknown = append(unknown, id)
		}
	}
	return unknown, nil
}

// subscriber says what its map has; other events are done.
type subscriber struct {
	name   string
	mu     *sync.Mutex
	states map[string]reconcile.State
	held   []reconcile.HeldEvent
	since  time.Time
	err    error
}

func (s *subscriber) Name() string { return s.name }

func (s *subscriber) States(_ context.Context, events []reconcile.Event) (reconcile.Answer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := reconcile.Answer{CompleteSince: s.since}
	for _, e := range events {
		state, ok := s.states[e.ID]
		if !ok {
			state = in(reconcile.Done)
		}
		a.States = append(a.States, state)
	}
	return a, errors.Join(s.err, reconcile.CheckPage(len(events)))
}

func (s *subscriber) Held(context.Context, reconcile.Window, string) (reconcile.HeldPage, error) {
	return reconcile.HeldPage{Events: s.held}, nil
}

func in(standings ...reconcile.Standing) reconcile.State { return reconcile.State{In: standings} }

var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// story is a world with n events and subscribers a and b.
func story(n int) (*world, map[string]*subscriber) {
	w := &world{places: map[string]reconcile.Place{}}
	for k := range n {
		w.events = append(w.events, reconcile.Event{
			Seq: int64(k + 1), ID: fmt.Sprint("e", k), Order: fmt.Sprint("o", k), Version: 1, At: noon.Add(time.Duration(k) * time.Second),
		})
	}
	w.overview.Consumers = []string{"a", "b"}
	subs := map[string]*subscriber{}
	for _, name := range w.overview.Consumers {
		subs[name] = &subscriber{name: name, mu: &w.mu, states: map[string]reconcile.State{}}
	}
	return w, subs
}

// run reconciles through admin ports, one for each of them.
func run(t *testing.T, c reconcile.Config, w *world, subs map[string]*subscriber) reconcile.Report {
	t.Helper()
	var addresses []string
	serve := func(name string, handler http.Handler) {
		checks := &admin.Checks{}
		checks.MountPart(name, reconcile.Part, handler)
		server := httptest.NewServer(admin.Handler(checks, prometheus.NewRegistry()))
		t.Cleanup(server.Close)
		addresses = append(addresses, server.URL)
	}
	serve("store", reconcile.StoreHandler(w, logs.Discard()))
	for _, s := range subs {
		serve(s.name, reconcile.SubscriberHandler(s, logs.Discard()))
	}
	client := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(client.CloseIdleConnections)
	store, found, silent, err := reconcile.Dial(t.Context(), client, append(addresses, addresses...), "test")
	require.NoError(t, err)
	require.Len(t, found, len(subs), "a replica more is no subscriber more")
	if c.Pauses == nil {
		c.Pauses = []time.Duration{time.Millisecond, time.Millisecond}
	}
	r, err := reconcile.Run(t.Context(), c, store, found, silent...)
	require.NoError(t, err)
	return r
}

// TestVerdicts: what a subscriber and the store say of one event, and what it comes to.
func TestVerdicts(t *testing.T) {
	t.Parallel()
	lane := int64(0)
	for name, c := range map[string]struct {
		state reconcile.State
		place reconcile.Place
		want  string // a standing or a kind
	}{
		"done":             {in(reconcile.Done), "", "done"},
		"waiting":          {in(reconcile.Waiting), "", "waiting"},
		"dead":             {in(reconcile.Dead), "", "dead"},
		"settled":          {in(reconcile.Settled), "", "settled"},
		"exempt":           {in(reconcile.Exempt), reconcile.Old, "exempt"},
		"in the outbox":    {in(reconcile.None), reconcile.InOutbox, "coming"},
		"refilled":         {in(reconcile.None), reconcile.InRefill, "coming"},
		"in the stream":    {in(reconcile.None), reconcile.InStream, "coming"},
		"on a route":       {in(reconcile.None), reconcile.OnRoute, "coming"},
		"refused":          {in(reconcile.None), reconcile.Refused, "unhandled"},
		"behind it":        {in(reconcile.None), reconcile.Held, "unhandled"},
		"not on the route": {in(reconcile.None), reconcile.Elsewhere, "exempt"},
		"too much":         {in(reconcile.None), reconcile.Untold, "doubtful"},
		"nowhere":          {in(reconcile.None), reconcile.Gone, "lost"},
		"long ago":         {in(reconcile.None), reconcile.Old, "lost"},
		"never published":  {in(reconcile.None), reconcile.Unpublished, "unpublished"},
		"passed":           {in(reconcile.Passed), reconcile.InStream, "no-effect"},
		"two states":       {in(reconcile.Done, reconcile.Dead), "", "twice"},
		"twice":            {in(reconcile.Done, reconcile.Done), "", "twice"},
		"lane":             {reconcile.State{In: []reconcile.Standing{reconcile.Done}, Lane: &lane}, "", "lane"},
		"proof is gone":    {in(reconcile.Unproven), "", "unproven"},
		"taken for done":   {in(reconcile.Assumed), "", "assumed"},
		"no answer":        {in(), "", "doubtful"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, subs := story(2)
			subs["a"].states["e1"], w.places["e1"] = c.state, c.place
			if c.place == reconcile.Unpublished {
				subs["b"].states["e1"] = c.state
			}
			r := run(t, reconcile.Config{}, w, subs)
			require.Empty(t, r.Silent)
			if r.Total() == 0 {
				if c.want == "done" {
					require.Equal(t, 2, r.Subscribers[0].Events[reconcile.Done])
				} else {
					require.Equal(t, 1, r.Subscribers[0].Events[reconcile.Standing(c.want)], "%+v", r)
				}
				require.Equal(t, c.want == "assumed", len(r.Assumed) == 1)
				return
			}
			require.Len(t, r.Findings, 1, "%+v", r.Findings)
			require.Equal(t, 1, r.Findings[0].Count)
			require.Equal(t, reconcile.Kind(c.want), r.Findings[0].Kind)
			require.Equal(t, "e1", r.Findings[0].Items[0].Event)
			require.NotEmpty(t, r.Findings[0].Kind.Means())
		})
	}
}

// TestRoutes: an event that another subscriber still has is not lost for those behind it.
func TestRoutes(t *testing.T) {
	t.Parallel()
	w, subs := story(3)
	w.overview.Sequential = []string{"a", "b"}
	subs["a"].states["e0"] = reconcile.State{In: []reconcile.Standing{reconcile.Parked}, Onward: []string{"b"}}
	subs["b"].states["e0"] = in(reconcile.None)
	subs["a"].states["e1"], subs["b"].states["e1"] = in(reconcile.Settled), in(reconcile.None)
	r := run(t, reconcile.Config{Services: []string{"b"}}, w, subs)
	require.Empty(t, r.Findings)
	require.Len(t, r.Subscribers, 1)
	require.Equal(t, map[reconcile.Standing]int{reconcile.Coming: 1, reconcile.Settled: 1, reconcile.Done: 1}, r.Subscribers[0].Events)

	subs["a"].err = errors.New("down")
	r = run(t, reconcile.Config{Services: []string{"b"}}, w, subs)
	require.Empty(t, r.Findings, "who is before b cannot be asked")
	require.Equal(t, 2, r.Subscribers[0].Events[reconcile.Doubtful])
}

// TestWhatMovesIsNoFinding: between two looks the events arrive.
func TestWhatMovesIsNoFinding(t *testing.T) {
	t.Parallel()
	w, subs := story(2500)
	for _, e := range w.events {
		subs["a"].states[e.ID] = in(reconcile.None)
	}
	w.afterLooks = func(n int) {
		if n == 4 {
			clear(subs["a"].states)
		}
	}
	r := run(t, reconcile.Config{}, w, subs)
	require.Empty(t, r.Findings)
	require.Equal(t, 2500, r.Events)
	require.Equal(t, 2500, r.Subscribers[0].Events[reconcile.Done])
}

func TestNamesAreBoundedAndRetentionIsNoLoss(t *testing.T) {
	t.Parallel()
	w, subs := story(400)
	for _, e := range w.events[:300] {
		subs["a"].states[e.ID] = in(reconcile.None)
	}
	subs["a"].since = w.events[100].At
	r := run(t, reconcile.Config{}, w, subs)
	require.Equal(t, 200, r.Total())
	require.Len(t, r.Findings[0].Items, reconcile.MaxNamed)
	require.Equal(t, 100, r.Subscribers[0].Events[reconcile.Removed])
}

func TestWhoDoesNotAnswerIsListed(t *testing.T) {
	t.Parallel()
	w, subs := story(1)
	w.overview.Consumers = append(w.overview.Consumers, "third")
	subs["a"].err = errors.New("the disk of db.internal is full")
	r := run(t, reconcile.Config{}, w, subs)
	require.Empty(t, r.Findings)
	require.Len(t, r.Subscribers, 1)
	require.Len(t, r.Silent, 2)
	for _, s := range r.Silent {
		require.NotContains(t, s.Why, "db.internal")
	}
	r = run(t, reconcile.Config{Services: []string{"b"}}, w, subs)
	require.Empty(t, r.Silent)
	r = run(t, reconcile.Config{Services: []string{"typo"}}, w, subs)
	require.Len(t, r.Silent, 1)

	_, _, silent, err := reconcile.Dial(t.Context(), http.DefaultClient, []string{"http://127.0.0.1:1"}, "test")
	require.ErrorIs(t, err, reconcile.ErrNoStore)
	require.Len(t, silent, 1)
}

// TestReportShape is what scripts read.
func TestReportShape(t *testing.T) {
	t.Parallel()
	w, subs := story(2)
	w.broken = []reconcile.BrokenOrder{{Order: "o9", Problem: "gap"}}
	w.overview.Consumers = append(w.overview.Consumers, "third")
	subs["a"].states["e1"] = in(reconcile.None)
	subs["b"].held = []reconcile.HeldEvent{{ID: "x1", Order: "o7", Version: 3}, {ID: "e0", Order: "o0", Version: 1}}
	r := run(t, reconcile.Config{}, w, subs)
	r.At = noon
	text, err := json.Marshal(r)
	require.NoError(t, err)
	require.JSONEq(t, `{"at":"2026-11-30T12:00:00Z","events":2,"orders":1,"outbox_waiting":0,"outbox_refused":0,
		"subscribers":[{"service":"a","events":{"done":1}},{"service":"b","events":{"done":2}}],
		"findings":[
			{"kind":"lost","service":"a","count":1,"items":[{"event":"e1","order":"o1","version":1,"note":"gone"}]},
			{"kind":"extra","service":"b","count":1,"items":[{"event":"x1","order":"o7","version":3}]},
			{"kind":"versions","service":"store","count":1,"items":[{"order":"o9","note":"gap"}]}],
		"not_answered":[{"who":"third","why":"it is registered with the store, and no admin port that was asked has it"}]}`, string(text))
}

// TestQuestionsAreBounded: nobody can be made to look up more than a page.
func TestQuestionsAreBounded(t *testing.T) {
	t.Parallel()
	w, subs := story(0)
	handler := reconcile.SubscriberHandler(subs["a"], logs.Discard())
	for body, status := range map[string]int{
		`{"events":[` + repeat(`{"id":"e"}`, reconcile.MaxEvents) + `]}`:   200,
		`{"events":[` + repeat(`{"id":"e"}`, reconcile.MaxEvents+1) + `]}`: 400,
		`{"events":[`: 400,
		`{"events":"` + repeat("xxxxxxxx", 200_000) + `"}`: 413,
	} {
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, httptest.NewRequest(http.MethodPost, "/reconcile/states", strings.NewReader(body)))
		require.Equal(t, status, answer.Code, "%.40s", body)
	}
	answer := httptest.NewRecorder()
	reconcile.StoreHandler(w, logs.Discard()).ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/reconcile/overview?since=yesterday", nil))
	require.Equal(t, 400, answer.Code)
}

func repeat(text string, n int) string { return strings.TrimSuffix(strings.Repeat(text+",", n), ",") }
