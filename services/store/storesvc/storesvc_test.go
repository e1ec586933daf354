package storesvc_test

import (
	"context"
	"encoding/json"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/pillarbox/pillarbox/services/store/storesvc"
	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/broker/brokertest"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
	"github.com/pillarbox/pillarbox/shared/events"
	"github.com/pillarbox/pillarbox/shared/logs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	patience = time.Minute
	tea      = `{"customer":{"email":"ada@example.com"},"currency":"EUR","items":[{"sku":"TEA-01","quantity":2,"unit_price":"4.50"}]}`
)

type replica struct {
	*storesvc.Service
	t    *testing.T
	stop func()
}

// start runs a replica until stop, which also checks that it ended well.
func start(t *testing.T, db *database.DB, conn *broker.Conn, c storesvc.Config) *replica {
	t.Helper()
	s, err := storesvc.New(c, storesvc.Deps{DB: db, Broker: conn, Log: logs.Discard(), Registry: prometheus.NewRegistry()})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	var once sync.Once
	r := &replica{s, t, func() {
		once.Do(func() {
			cancel()
			require.NoError(t, <-ended)
		})
	}}
	t.Cleanup(r.stop)
	return r
}

func (r *replica) do(method, path, body string) *httptest.ResponseRecorder {
	r.t.Helper()
	req := httptest.NewRequest(method, path, strings.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	r.Handler().ServeHTTP(w, req)
	return w
}

// place places an order and returns its path.
func (r *replica) place() string {
	r.t.Helper()
	w := r.do("POST", "/orders", tea)
	require.Equal(r.t, 201, w.Code, w.Body.String())
	return w.Header().Get("Location")
}

func (r *replica) published(path string) bool {
	r.t.Helper()
	var timeline struct{ Events []struct{ Published bool } }
	require.NoError(r.t, json.Unmarshal(r.do("GET", path+"/timeline", "").Body.Bytes(), &timeline))
	require.Len(r.t, timeline.Events, 1)
	return timeline.Events[0].Published
}

func TestOrderReachesTheStream(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "store", func(t *testing.T, db *database.DB) {
		conn := brokertest.Connect(t, brokertest.Server(t))
		r := start(t, db, conn, storesvc.Config{})
		path := r.place()
		require.Eventually(t, func() bool { return r.published(path) }, patience, 5*time.Millisecond)
		require.Eventually(t, func() bool { return r.Ready(t.Context()) == nil }, patience, 5*time.Millisecond)
		stream, err := conn.JS.Stream(t.Context(), events.StreamOrders)
		require.NoError(t, err)
		m, err := stream.GetLastMsgForSubject(t.Context(), events.TopicOrders)
		require.NoError(t, err)
		e, err := events.Decode(m.Data)
		require.NoError(t, err)
		require.Equal(t, "/orders/"+e.Subject, path)

		r.stop()
		require.Equal(t, 503, r.do("POST", "/orders", tea).Code)
		second := start(t, db, conn, storesvc.Config{}) // the next process on the same database
		path = second.place()
		require.Eventually(t, func() bool { return second.published(path) }, patience, 5*time.Millisecond)
	})
}

func TestAnyReplicasOrdersAreRelayed(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "store", func(t *testing.T, db *database.DB) {
		conn := brokertest.Connect(t, brokertest.Server(t))
		replicas := []*replica{start(t, db, conn, storesvc.Config{}), start(t, db, conn, storesvc.Config{})}
		for i := range 10 {
			path := replicas[i%2].place()
			require.Eventually(t, func() bool { return replicas[0].published(path) }, patience, 5*time.Millisecond)
		}
		replicas[0].stop()
		path := replicas[1].place()
		require.Eventually(t, func() bool { return replicas[1].published(path) }, patience, 5*time.Millisecond)
	})
}

func TestOutboxOverItsLimit(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "store", func(t *testing.T, db *database.DB) {
		away := noBroker(t)
		r := start(t, db, away, storesvc.Config{OutboxLimit: 3})
		require.Eventually(t, func() bool { return r.Ready(t.Context()) == nil }, patience, 5*time.Millisecond)
		for range 3 {
			r.place()
		}
		refused := r.do("POST", "/orders", tea)
		require.Equal(t, 503, refused.Code)
		require.NotEmpty(t, refused.Header().Get("Retry-After"))
		require.Eventually(t, func() bool { return r.Ready(t.Context()) != nil }, patience, 5*time.Millisecond)
		require.ErrorContains(t, r.Ready(t.Context()), "outbox holds 3 events")
		r.stop()

		// With a broker the backlog drains and orders are taken again.
		second := start(t, db, brokertest.Connect(t, brokertest.Server(t)), storesvc.Config{OutboxLimit: 3})
		require.Eventually(t, func() bool { return second.Ready(t.Context()) == nil }, patience, 5*time.Millisecond)
		require.Eventually(t, func() bool { return second.do("POST", "/orders", tea).Code == 201 }, patience, 20*time.Millisecond)
	})
}

func TestNotReadyWithOldEventsOrWithoutDatabase(t *testing.T) {
	t.Parallel()
	databasetest.EachURL(t, "store", func(t *testing.T, db *database.DB, url string) {
		away := noBroker(t)
		other, err := database.Open(url, database.Options{Schema: "store"})
		require.NoError(t, err)
		r := start(t, other, away, storesvc.Config{OutboxMaxAge: time.Second})
		require.ErrorContains(t, idle(t, db, away).Ready(t.Context()), "not read yet")
		r.place()
		require.Eventually(t, func() bool {
			err := r.Ready(t.Context())
			return err != nil && strings.Contains(err.Error(), "oldest event waits")
		}, patience, 10*time.Millisecond)
		r.stop()
		require.NoError(t, other.Close())
		require.ErrorContains(t, r.Ready(t.Context()), "database")
	})
}

// noBroker is a connection to a server that never answers.
func noBroker(t *testing.T) *broker.Conn {
	t.Helper()
	conn, err := broker.Connect(broker.Config{URL: "nats://127.0.0.1:1"}, logs.Discard())
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	return conn
}

// idle is a replica that does not run.
func idle(t *testing.T, db *database.DB, conn *broker.Conn) *storesvc.Service {
	t.Helper()
	s, err := storesvc.New(storesvc.Config{}, storesvc.Deps{DB: db, Broker: conn, Log: logs.Discard()})
	require.NoError(t, err)
	return s
}

func TestNewChecksItsArguments(t *testing.T) {
	t.Parallel()
	_, err := storesvc.New(storesvc.Config{}, storesvc.Deps{})
	require.ErrorContains(t, err, "required")
	_, err = storesvc.New(storesvc.Config{IntakeGroup: -1}, storesvc.Deps{})
	require.ErrorContains(t, err, "INTAKE_GROUP")
	db, _ := databasetest.SQLite(t, "store")
	s, err := storesvc.New(storesvc.Config{}, storesvc.Deps{DB: db, Broker: noBroker(t), Log: logs.Discard()})
	require.NoError(t, err)
	require.NotNil(t, s.Handler())
}

func TestOldAnswersAreCleaned(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "store", func(t *testing.T, db *database.DB) {
		require.NoError(t, db.Tx(t.Context(), func(ctx context.Context, tx *database.Tx) error {
			for _, row := range []struct {
				key string
				age time.Duration
			}{{"old", 25 * time.Hour}, {"new", 23 * time.Hour}} {
				if _, err := tx.ExecContext(ctx, `INSERT INTO idempotency (caller, key, fingerprint, order_id, status, response, created_at)
					VALUES ('', $1, $2, 'o', 201, $2, `+tx.Dialect().Now()+` - $3)`, row.key, []byte{1}, row.age.Microseconds()); err != nil {
					return err
				}
			}
			return nil
		}))
		start(t, db, noBroker(t), storesvc.Config{KeyRetention: 24 * time.Hour})
		var key string
		require.Eventually(t, func() bool {
			rows := 0
			require.NoError(t, db.Read().QueryRowContext(t.Context(), "SELECT count(*), min(key) FROM idempotency").Scan(&rows, &key))
			return rows == 1
		}, patience, 5*time.Millisecond)
		require.Equal(t, "new", key)
	})
}
