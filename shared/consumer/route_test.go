package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/broker/brokertest"
	"github.com/pillarbox/pillarbox/shared/broker/embedded"
	"github.com/pillarbox/pillarbox/shared/consumer"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
	"github.com/pillarbox/pillarbox/shared/events"
	"github.com/pillarbox/pillarbox/shared/logs"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

// gate is a publisher that can be made to fail, or to never come back.
type gate struct {
	consumer.Publisher
	fail  atomic.Pointer[error]
	stuck chan struct{} // not nil: a call waits for it and then fails
	calls atomic.Int64
}

var errStuck = errors.New("stuck")

func (g *gate) PublishAll(ctx context.Context, topic string, messages []*message.Message) error {
	g.calls.Add(1)
	if g.stuck != nil {
		<-g.stuck
		return errStuck
	}
	if err := g.fail.Load(); err != nil {
		return *err
	}
	return g.Publisher.PublishAll(ctx, topic, messages)
}

func (g *gate) shut(err error) { g.fail.Store(&err) }
func (g *gate) open()          { g.fail.Store(nil) }

// routed is a consumer on a route, and what it hands on.
type routed struct {
	*bundle
	server *embedded.Server
	conn   *broker.Conn
	pub    *gate

	ackWait time.Duration
	metrics *prometheus.Registry // of the replica that was started last
}

// eachRouted runs test on both engines, each with a broker of its own.
func eachRouted(t *testing.T, test func(t *testing.T, r *routed)) {
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		r := &routed{bundle: setup(t, db), ackWait: 500 * time.Millisecond}
		r.server = brokertest.Server(t)
		r.conn = brokertest.Connect(t, r.server)
		_, err := r.conn.EnsureStream(t.Context(), broker.StreamConfig{Name: events.StreamOrders})
		require.NoError(t, err)
		r.pub = &gate{Publisher: broker.NewPublisher(r.conn, broker.PublisherConfig{})}
		test(t, r)
	})
}

// run starts a replica on a connection.
func (r *routed) run(conn *broker.Conn, pub consumer.Publisher, e consumer.Effect) *replica {
	r.t.Helper()
	sc := consumer.Settings{Policy: consumer.Policy{Drain: time.Second}}.Subscriber(r.config.Name)
	sc.AckWait, sc.NackDelay = r.ackWait, 10*time.Millisecond
	r.metrics = prometheus.NewRegistry()
	sub, err := broker.NewSubscriber(conn, sc)
	require.NoError(r.t, err)
	c, err := consumer.New(r.config, consumer.Deps{
		DB: r.db, Subscriber: sub, Effect: e, Publisher: pub, Log: logs.New(r.t.Output(), "text", 0), Registry: r.metrics,
	})
	require.NoError(r.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		require.NoError(r.t, <-done)
	})
	r.t.Cleanup(stop)
	return &replica{Consumer: c, stop: stop}
}

func (r *routed) start(e consumer.Effect) *replica { return r.run(r.conn, r.pub, e) }

// send puts an event on the route; an empty one is how it comes to all at once.
func (r *routed) send(route string, body []byte) {
	r.t.Helper()
	m := &nats.Msg{Subject: events.TopicOrders, Data: body, Header: nats.Header{}}
	if route != "" {
		m.Subject = events.RouteTopic(r.config.Name)
		m.Header[events.HeaderRoute] = []string{route}
	}
	_, err := r.conn.JS.PublishMsg(context.Background(), m)
	require.NoError(r.t, err)
}

// onward is what came to the next consumers: their names, the rest of the route, the event and its publish id.
func (r *routed) onward() (all []string) {
	r.t.Helper()
	stream, err := r.conn.JS.Stream(context.Background(), events.StreamOrders)
	require.NoError(r.t, err)
	for seq := uint64(1); seq <= stream.CachedInfo().State.LastSeq; seq++ {
		m, err := stream.GetMsg(context.Background(), seq)
		require.NoError(r.t, err)
		next, ok := strings.CutPrefix(m.Subject, "orders.route.")
		if !ok || next == r.config.Name {
			continue
		}
		e, err := events.Decode(m.Data)
		require.NoError(r.t, err)
		require.Equal(r.t, e.ID, m.Header.Get(broker.MetaUUID))
		route := m.Header.Get(events.HeaderRoute)
		require.Equal(r.t, e.ID+"/"+route, m.Header.Get(jetstream.MsgIDHeader))
		all = append(all, fmt.Sprintf("%s %s %s", next, route, e.ID))
	}
	return all
}

// metric is what a counter says of one result.
func (r *routed) metric(name, result string) float64 {
	r.t.Helper()
	families, err := r.metrics.Gather()
	require.NoError(r.t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, label := range m.GetLabel() {
				if f.GetName() == name && label.GetName() == "result" && label.GetValue() == result {
					return m.GetCounter().GetValue()
				}
			}
		}
	}
	require.FailNow(r.t, "no such metric", name+" "+result)
	return 0
}

func (r *routed) quiet() {
	r.t.Helper()
	r.eventually(r.t, func() bool {
		q, err := r.conn.Queue(context.Background(), events.StreamOrders)
		return err == nil && len(q.Consumers) == 1 && q.Consumers[0].Idle()
	}, "everything acknowledged")
}

// effects are the two forms of one: all in the transaction, or in steps.
func effects(t testing.TB) map[string]consumer.Effect {
	return map[string]consumer.Effect{"in the transaction": consumer.Apply(record), "in steps": &staged{t: t}}
}

// notBefore is when orders were placed that are none of before the consumer's first start.
func notBefore() time.Time { return time.Now().Add(time.Hour) }

const route = "loyalty,audit,crm"

func TestHandedOnOnceItTookEffect(t *testing.T) {
	t.Parallel()
	eachRouted(t, func(t *testing.T, r *routed) {
		r.start(consumer.Apply(record))
		body := event("a", 1)
		r.send(route, body)
		r.send("", event("b", 1))
		r.send("loyalty", event("c", 1))
		r.eventually(t, func() bool { return r.bundle.effects() == 3 && len(r.onward()) > 0 }, "effects")
		r.quiet()
		require.Equal(t, []string{"audit audit,crm a-1"}, r.onward())
		stream, err := r.conn.JS.Stream(t.Context(), events.StreamOrders)
		require.NoError(t, err)
		m, err := stream.GetLastMsgForSubject(t.Context(), events.RouteTopic("audit"))
		require.NoError(t, err)
		require.Equal(t, body, m.Data, "the same bytes")

		r.send(route, body) // as after a crash before the acknowledgement: the stream knows the step
		r.quiet()
		require.Len(t, r.onward(), 1)
		r.send("loyalty,crm", body) // another route
		r.eventually(t, func() bool { return len(r.onward()) == 2 }, "both routes")
		require.Equal(t, "crm crm a-1", r.onward()[1])
		require.Equal(t, 3, r.bundle.effects())
	})
}

// TestCrashBeforeItIsHandedOn: the first replica commits and is never heard of again.
func TestCrashBeforeItIsHandedOn(t *testing.T) {
	t.Parallel()
	eachRouted(t, func(t *testing.T, r *routed) {
		for _, ordered := range []bool{true, false} {
			id := fmt.Sprint("order-", ordered)
			r.config.Ordered = ordered
			stuck := &gate{stuck: make(chan struct{})}
			away, err := broker.Connect(broker.Config{Server: r.server, Token: r.server.Token()}, logs.Discard())
			require.NoError(t, err)
			first := r.run(away, stuck, consumer.Apply(recordOnce))
			r.send(route, event(id, 1))
			r.send(route, event(id, 2))
			r.eventually(t, func() bool { return r.versions(id) != "" && stuck.calls.Load() > 0 }, "committed")
			before := len(r.onward())
			away.Close()

			second := r.start(consumer.Apply(recordOnce))
			r.eventually(t, func() bool { return len(r.onward()) == before+2 }, "handed on by the other")
			require.ElementsMatch(t, []string{"audit audit,crm " + eventID(id, 1), "audit audit,crm " + eventID(id, 2)}, r.onward()[before:])
			require.Len(t, strings.Fields(r.versions(id)), 2, "one effect each")
			close(stuck.stuck)
			first.stop()
			second.stop()
			r.noLetters(t)
		}
	})
}

// recordOnce is an effect that knows what it has done.
func recordOnce(ctx context.Context, tx *database.Tx, due []consumer.Event) error {
	for _, e := range due {
		_, err := tx.ExecContext(ctx, `INSERT INTO ledger (event_id, customer, order_id, order_version, points, reason, at)
			VALUES ($1, 'ada@example.com', $2, $3, 9, 'placed', 0) ON CONFLICT DO NOTHING`, e.ID, e.Subject, e.Version)
		if err != nil {
			return err
		}
	}
	return nil
}

// TestNobodyToHandItTo: the stream takes nothing for a while. That is an outage: nothing is burned, nothing lost.
func TestNobodyToHandItTo(t *testing.T) {
	t.Parallel()
	eachRouted(t, func(t *testing.T, r *routed) {
		r.config.MaxAttempts = 1
		r.pub.shut(broker.ErrFull)
		c := r.start(consumer.Apply(record))
		for n := range 30 {
			r.send(route, event(fmt.Sprint("o", n), 1))
		}
		r.eventually(t, func() bool { return strings.Contains(c.Status().Paused, "forward to audit: stream full") }, "paused")
		require.Empty(t, r.onward())
		r.pub.open()
		r.eventually(t, func() bool { return len(r.onward()) == 30 }, "handed on")
		r.quiet()
		require.Empty(t, c.Status().Paused)
		require.Equal(t, 30, r.bundle.effects())
		require.Zero(t, r.count(`SELECT count(*) FROM parked`))
		r.noLetters(t)
	})
}

// TestParkedIsHandedOnWhenItTakesEffect: the route outlives the message, for what failed and for what came too early.
func TestParkedIsHandedOnWhenItTakesEffect(t *testing.T) {
	t.Parallel()
	eachRouted(t, func(t *testing.T, r *routed) {
		var broken atomic.Bool
		broken.Store(true)
		r.config.MaxAttempts = 1000
		e := &staged{t: t, apply: func(_ context.Context, g consumer.Group) error {
			if broken.Load() && has(g.Due, "a-1") {
				return errBroken
			}
			return nil
		}}
		r.start(e)
		r.send(route, eventPlaced("a", 2, notBefore()))
		r.send(route, event("a", 1))
		r.send(route, event("b", 1))
		r.eventually(t, func() bool { return r.parked("parked") == 1 && r.parked("waiting") == 1 && len(r.onward()) == 1 }, "parked")
		r.quiet()
		require.Equal(t, []string{"audit audit,crm b-1"}, r.onward())
		broken.Store(false)
		r.eventually(t, func() bool { return len(r.onward()) == 3 }, "handed on")
		require.ElementsMatch(t, []string{"audit audit,crm a-1", "audit audit,crm a-2"}, r.onward()[1:])
		r.eventually(t, func() bool { return r.count(`SELECT count(*) FROM parked`) == 0 }, "no row left")
		require.Equal(t, "1 2", r.versions("a"))
	})
}

// TestRowStaysUntilItsEventIsHandedOn: its message was acknowledged long ago, so nothing else would bring it back.
func TestRowStaysUntilItsEventIsHandedOn(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"in the transaction", "in steps"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachRouted(t, func(t *testing.T, r *routed) {
				first := r.start(effects(t)[name])
				r.send(route, eventPlaced("a", 2, notBefore()))
				r.send("", eventPlaced("b", 2, notBefore()))
				r.eventually(t, func() bool { return r.parked("waiting") == 2 }, "waiting")
				r.pub.shut(errBroken)
				r.send("", event("a", 1))
				r.eventually(t, func() bool { return r.versions("a") == "1 2" && first.Status().Paused != "" }, "committed")
				require.Equal(t, []string{"a-2", "b-2"}, r.text(`SELECT event_id FROM parked ORDER BY event_id`))
				first.stop() // and another process goes on
				r.pub.open()
				r.start(effects(t)[name])
				r.eventually(t, func() bool { return slices.Equal(r.onward(), []string{"audit audit,crm a-2"}) }, "handed on")
				r.eventually(t, func() bool { return r.parked("waiting") == 1 }, "its row is gone")
				require.Equal(t, "1 2", r.versions("a"))
			})
		})
	}
}

// TestDeadGoesNoFurther: the next consumer sees nothing of it, whether the order is held or goes on.
func TestDeadGoesNoFurther(t *testing.T) {
	t.Parallel()
	for _, after := range []consumer.AfterDeath{consumer.Hold, consumer.Skip} {
		t.Run(string(after), func(t *testing.T) {
			t.Parallel()
			eachRouted(t, func(t *testing.T, r *routed) {
				r.config.MaxAttempts, r.config.AfterDeath = 2, after
				e := &staged{t: t, prepare: func(_ context.Context, g consumer.Group) error {
					if has(g.Due, "a-1") {
						return errBroken
					}
					return nil
				}}
				r.start(e)
				r.send(route, event("a", 1))
				r.eventually(t, func() bool { return r.letters() == 1 }, "dead")
				require.Contains(t, r.text(`SELECT headers FROM dead_letters`)[0], `"Pillarbox-Route":["loyalty,audit,crm"]`,
					"who tries it again finds the route")
				r.send(route, event("a", 1)) // once more, as after a crash before the acknowledgement
				r.send(route, event("a", 2))
				r.send(route, event("b", 1))
				want := []string{"audit audit,crm b-1"}
				if after == consumer.Skip {
					want = []string{"audit audit,crm a-2", "audit audit,crm b-1"}
				}
				r.eventually(t, func() bool { return len(r.onward()) == len(want) }, "the others")
				r.quiet()
				require.ElementsMatch(t, want, r.onward())
			})
		})
	}
}

// TestRefusedForEver: what the broker will never take is seen as a dead letter here, and holds nobody up.
func TestRefusedForEver(t *testing.T) {
	t.Parallel()
	eachRouted(t, func(t *testing.T, r *routed) {
		r.start(consumer.Apply(record))
		r.pub.shut(fmt.Errorf("too large: %w", broker.ErrRefused))
		r.send(route, event("a", 1))
		r.eventually(t, func() bool { return r.letters() == 1 }, "dead")
		r.pub.open()
		r.send(route, event("a", 2))
		r.eventually(t, func() bool { return len(r.onward()) == 1 }, "the next")
		require.Equal(t, []string{"audit audit,crm a-2"}, r.onward())
		require.Contains(t, r.text(`SELECT reason FROM dead_letters`)[0], "forward to audit")
		require.Equal(t, "1 2", r.versions("a"))
	})
}

// TestNoRoute: a header that is no route of this consumer's makes a dead letter with the bytes as they came.
func TestNoRoute(t *testing.T) {
	t.Parallel()
	eachRouted(t, func(t *testing.T, r *routed) {
		r.start(consumer.Apply(record))
		bad := []string{"audit,crm", "loyalty,loyalty", "loyalty,Ä", ",", "loyalty," + strings.Repeat("x", 5000), "crm,loyalty"}
		for n, route := range bad {
			r.send(route, event(fmt.Sprint("o", n), 1))
		}
		m := &nats.Msg{Subject: events.RouteTopic("loyalty"), Data: event("two", 1), Header: nats.Header{events.HeaderRoute: {"loyalty", "loyalty,audit"}}}
		_, err := r.conn.JS.PublishMsg(t.Context(), m)
		require.NoError(t, err)
		r.eventually(t, func() bool { return r.letters() == len(bad)+1 }, "dead letters")
		require.Equal(t, 1, r.count(`SELECT count(*) FROM dead_letters WHERE body = $1`, m.Data))
		require.Zero(t, r.bundle.effects())
		require.Empty(t, r.onward())
	})
}

// TestRoutesOfOneEventAreJoined: it waits, having come to all at once, and comes again by a route, as when the mode
// is changed and the stream is filled again.
func TestRoutesOfOneEventAreJoined(t *testing.T) {
	t.Parallel()
	eachRouted(t, func(t *testing.T, r *routed) {
		r.start(consumer.Apply(record))
		r.send("", eventPlaced("a", 2, notBefore()))
		r.eventually(t, func() bool { return r.parked("waiting") == 1 }, "waiting")
		r.send(route, event("a", 2))
		r.eventually(t, func() bool {
			return r.count(`SELECT count(*) FROM parked WHERE headers LIKE '%loyalty,audit%'`) == 1
		}, "the row has one")
		r.send("loyalty,crm,shop", event("a", 2))
		r.eventually(t, func() bool {
			return r.count(`SELECT count(*) FROM parked WHERE headers LIKE '%"loyalty,audit,crm,shop"%'`) == 1
		}, "the row has both")
		r.send("", event("a", 1))
		r.eventually(t, func() bool { return len(r.onward()) == 1 }, "handed on")
		require.Equal(t, []string{"audit audit,crm,shop a-2"}, r.onward())
		r.eventually(t, func() bool { return r.count(`SELECT count(*) FROM parked`) == 0 }, "no row left")
	})
}
