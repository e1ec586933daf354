package httpapi_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/store/internal/httpapi"
	"github.com/pillarbox/pillarbox/services/store/internal/intake"
	"github.com/pillarbox/pillarbox/services/store/internal/order"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
	"github.com/pillarbox/pillarbox/shared/logs"
	"github.com/prometheus/client_golang/prometheus"
)

func TestSameKeyGetsTheFirstAnswerAgain(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "store", func(t *testing.T, db *database.DB) {
		s := open(t, db)
		s.do("POST", "/orders", `{}`, "Idempotency-Key", "k 1").is(422) // not kept
		first := s.do("POST", "/orders", tea, "Idempotency-Key", "k 1").is(201)
		require.Empty(t, first.header.Get("Idempotency-Replayed"))
		// Also after the order has changed, and after a restart: the answer is in the database.
		s.do("POST", first.header.Get("Location")+"/cancel", "").is(200)
		s.stop()
		again := open(t, db).do("POST", "/orders", tea, "Idempotency-Key", "k 1").is(201)
		require.Equal(t, "true", again.header.Get("Idempotency-Replayed"))
		require.Equal(t, first.body, again.body)
		for _, name := range []string{"Location", "ETag", "Content-Type"} {
			require.Equal(t, first.header.Get(name), again.header.Get(name))
		}
		other := open(t, db)
		other.do("POST", "/orders", tea+" ", "Idempotency-Key", "k 1").is(422)
		other.do("POST", "/orders", tea, "Idempotency-Key", "K 1").is(201)
		require.Equal(t, 2, count(t, db, "orders"))
	})
}

func TestFiftyAtOnceMakeOneOrder(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "store", func(t *testing.T, db *database.DB) {
		replicas := []*shop{open(t, db), open(t, db)} // the database decides between them
		var mu sync.Mutex
		seen := map[int]int{}
		bodies := map[string]bool{}
		fresh := 0
		var clients sync.WaitGroup
		for i := range 50 {
			clients.Go(func() {
				a := replicas[i%2].do("POST", "/orders", tea, "Idempotency-Key", "one")
				mu.Lock()
				defer mu.Unlock()
				seen[a.status]++
				switch a.status {
				case 201:
					bodies[string(a.body)] = true
					if a.header.Get("Idempotency-Replayed") == "" {
						fresh++
					}
				case 409:
					require.Equal(t, "1", a.header.Get("Retry-After"))
				}
			})
		}
		clients.Wait()
		require.Equal(t, 50, seen[201]+seen[409], "%v", seen)
		require.Len(t, bodies, 1)
		require.Equal(t, 1, fresh)
		require.Equal(t, 1, count(t, db, "orders"))
		require.Equal(t, 1, count(t, db, "events"))
	})
}

// gate is a Writer whose Place waits to be released.
type gate struct {
	httpapi.Writer
	entered, release chan struct{}
}

func (g *gate) Place(ctx context.Context, p order.Placement, k *intake.Keyed, t intake.Trace, n int) (intake.Answer, error) {
	g.entered <- struct{}{}
	<-g.release
	return g.Writer.Place(ctx, p, k, t, n)
}

func TestOneWaitsAndOthersAreTurnedAway(t *testing.T) {
	t.Parallel()
	db, _ := databasetest.SQLite(t, "store")
	s := open(t, db)
	g := &gate{Writer: s.intake, entered: make(chan struct{}, 8), release: make(chan struct{})}
	reg := prometheus.NewRegistry()
	var err error
	s.handler, err = httpapi.New(httpapi.Config{}, httpapi.Deps{
		DB: db, Writer: g, Log: logs.Discard(), Registry: reg,
	})
	require.NoError(t, err)
	const clients = 10
	answers := make(chan answer, clients)
	place := func() { answers <- s.do("POST", "/orders", tea, "Idempotency-Key", "k") }
	go place()
	<-g.entered
	for range clients - 1 {
		go place()
	}
	for range clients - 2 { // all but the first and the one that waits for it
		require.Equal(t, "1", (<-answers).is(409).header.Get("Retry-After"))
	}
	s.do("POST", "/orders", tea+" ", "Idempotency-Key", "k").is(422)
	require.Empty(t, g.entered, "nobody passes while the first runs")
	close(g.release)
	first, second := (<-answers).is(201), (<-answers).is(201)
	require.Equal(t, first.body, second.body)
	require.ElementsMatch(t, []string{"", "true"},
		[]string{first.header.Get("Idempotency-Replayed"), second.header.Get("Idempotency-Replayed")})
	require.Empty(t, g.entered, "the one that waited was given the answer")
	require.Equal(t, first.header.Get("Location"), second.header.Get("Location"))
	require.Equal(t, map[string]float64{"processed": 1, "shared": 1, "declined": clients - 2, "differed": 1}, outcomes(t, reg))
}

// outcomes are the counts of requests with a key, without those that are zero.
func outcomes(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	require.NoError(t, err)
	counts := map[string]float64{}
	for _, family := range families {
		if family.GetName() != "coalesce_requests_total" {
			continue
		}
		for _, m := range family.GetMetric() {
			for _, label := range m.GetLabel() {
				if n := m.GetCounter().GetValue(); label.GetName() == "outcome" && n > 0 {
					counts[label.GetValue()] = n
				}
			}
		}
	}
	return counts
}

func TestTheOneThatWaitsTakesOver(t *testing.T) {
	t.Parallel()
	db, _ := databasetest.SQLite(t, "store")
	s := open(t, db)
	g := &gate{Writer: s.intake, entered: make(chan struct{}, 8), release: make(chan struct{})}
	reg := prometheus.NewRegistry()
	var err error
	s.handler, err = httpapi.New(httpapi.Config{}, httpapi.Deps{DB: db, Writer: g, Log: logs.Discard(), Registry: reg})
	require.NoError(t, err)
	s.refuse.Store(&[]error{intake.ErrBacklog}[0])
	answers := make(chan answer, 3)
	place := func() { answers <- s.do("POST", "/orders", tea, "Idempotency-Key", "k") }
	go place()
	<-g.entered
	go place()
	go place()
	(<-answers).is(409) // so the other one waits
	g.release <- struct{}{}
	(<-answers).is(503) // the first
	<-g.entered
	s.refuse.Store(nil)
	g.release <- struct{}{}
	require.Empty(t, (<-answers).is(201).header.Get("Idempotency-Replayed"), "nobody had placed it before")
	require.EqualValues(t, 1, outcomes(t, reg)["took_over"])
	require.Equal(t, 1, count(t, db, "orders"))
}

func TestKeysUnderWayAreBounded(t *testing.T) {
	t.Parallel()
	db, _ := databasetest.SQLite(t, "store")
	s := open(t, db)
	g := &gate{Writer: s.intake, entered: make(chan struct{}, 8), release: make(chan struct{})}
	var err error
	s.handler, err = httpapi.New(httpapi.Config{Keys: 1}, httpapi.Deps{
		DB: db, Writer: g, Log: logs.Discard(), Registry: prometheus.NewRegistry(),
	})
	require.NoError(t, err)
	first := make(chan answer)
	go func() { first <- s.do("POST", "/orders", tea, "Idempotency-Key", "k 1") }()
	<-g.entered
	require.Equal(t, "1", s.do("POST", "/orders", tea, "Idempotency-Key", "k 2").is(503).header.Get("Retry-After"))
	close(g.release)
	(<-first).is(201)
	s.do("POST", "/orders", tea, "Idempotency-Key", "k 2").is(201)
}

func TestTheWaitEnds(t *testing.T) {
	t.Parallel()
	db, _ := databasetest.SQLite(t, "store")
	s := open(t, db)
	g := &gate{Writer: s.intake, entered: make(chan struct{}, 8), release: make(chan struct{})}
	var err error
	s.handler, err = httpapi.New(httpapi.Config{Wait: 10 * time.Millisecond}, httpapi.Deps{
		DB: db, Writer: g, Log: logs.Discard(), Registry: prometheus.NewRegistry(),
	})
	require.NoError(t, err)
	first := make(chan answer)
	go func() { first <- s.do("POST", "/orders", tea, "Idempotency-Key", "k") }()
	<-g.entered
	for range 3 { // each waits, gives up and makes room for the next
		s.do("POST", "/orders", tea, "Idempotency-Key", "k").is(409)
	}
	close(g.release)
	(<-first).is(201)
	s.do("POST", "/orders", tea, "Idempotency-Key", "k").is(201)
}

func TestRefusalsFromTheIntake(t *testing.T) {
	t.Parallel()
	db, _ := databasetest.SQLite(t, "store")
	s := open(t, db)
	path := "/orders/" + s.do("POST", "/orders", tea).is(201).order().ID
	for _, c := range []struct {
		err    error
		status int
	}{
		{intake.ErrBacklog, 503}, {intake.ErrBusy, 503}, {intake.ErrUnavailable, 503}, {errors.New("SELECT boom"), 500},
	} {
		s.refuse.Store(&c.err)
		for _, a := range []answer{
			s.do("POST", "/orders", tea),
			s.do("POST", "/orders", tea, "Idempotency-Key", "x"),
			s.do("PATCH", path, `{"customer":{"name":"x"}}`, "If-Match", "*"),
			s.do("POST", path+"/cancel", ""),
		} {
			require.Equal(t, c.status == 503, a.is(c.status).header.Get("Retry-After") != "")
		}
		s.do("GET", path, "").is(200)
	}
	// An unknown outcome invites a repetition only where that is safe.
	s.refuse.Store(&[]error{intake.ErrUnknown}[0])
	require.Empty(t, s.do("POST", "/orders", tea).is(500).header.Get("Retry-After"))
	s.do("POST", "/orders", tea, "Idempotency-Key", "x").is(503)
	s.do("PATCH", path, `{"customer":{"name":"x"}}`, "If-Match", "*").is(503)
	s.do("POST", path+"/cancel", "").is(503)
	s.refuse.Store(nil)
	s.do("POST", path+"/cancel", "").is(200)
	s.stop()
	require.Equal(t, "1", s.do("POST", "/orders", tea).is(503).header.Get("Retry-After"))
}
