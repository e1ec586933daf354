package outbox_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/broker/brokertest"
	"github.com/pillarbox/pillarbox/shared/events"
	"github.com/pillarbox/pillarbox/shared/outbox"
	"github.com/stretchr/testify/require"
)

func onRoute(names ...string) outbox.Config { return outbox.Config{Sequential: true, Route: names} }

// subjects counts the messages of the stream by subject and route.
func (b *bundle) subjects() map[string]int {
	b.t.Helper()
	s, err := b.conn.JS.Stream(b.t.Context(), events.StreamOrders)
	require.NoError(b.t, err)
	found := map[string]int{}
	state := s.CachedInfo().State
	for seq := state.FirstSeq; seq <= state.LastSeq; seq++ {
		m, err := s.GetMsg(b.t.Context(), seq)
		if err == nil {
			found[strings.TrimSpace(m.Subject+" "+m.Header.Get(events.HeaderRoute))]++
		}
	}
	return found
}

// reader is a durable of the kind that consumers have.
func (b *bundle) reader(name string) jetstream.Consumer {
	b.t.Helper()
	c, err := b.conn.JS.CreateConsumer(b.t.Context(), events.StreamOrders, jetstream.ConsumerConfig{
		Durable: name + "-1", AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: 10_000,
		FilterSubjects: []string{events.TopicOrders, events.RouteTopic(name), events.ReplayTopic(name)},
	})
	require.NoError(b.t, err)
	return c
}

// step hands n events on from one consumer to the next, as consumers do: confirmed before it is acknowledged.
func (b *bundle) step(c jetstream.Consumer, n int) {
	b.t.Helper()
	pub := broker.NewPublisher(b.conn, broker.PublisherConfig{})
	batch, err := c.Fetch(n, jetstream.FetchMaxWait(patience))
	require.NoError(b.t, err)
	for m := range batch.Messages() {
		if _, rest, ok := strings.Cut(m.Headers().Get(events.HeaderRoute), ","); ok {
			id, _, _ := strings.Cut(string(m.Data()), " ")
			onward := message.NewMessage(id, m.Data())
			onward.Metadata.Set(broker.MetaPublishID, id+"/"+rest)
			onward.Metadata.Set(events.HeaderRoute, rest)
			next, _, _ := strings.Cut(rest, ",")
			_, err := pub.PublishOne(b.t.Context(), events.RouteTopic(next), onward)
			require.NoError(b.t, err)
		}
		require.NoError(b.t, m.DoubleAck(b.t.Context()))
		n--
	}
	require.NoError(b.t, batch.Error())
	require.Zero(b.t, n)
}

func TestSequentialGoesToTheFirstOfTheRoute(t *testing.T) {
	t.Parallel()
	eachProcess(t, func(t *testing.T, b *bundle, p *brokertest.Process) {
		r := b.relay(options{config: onRoute("mailer", "audit")})
		b.commit(orders(3)...)
		b.drained()
		b.commit(orders(40)...) // as a batch
		b.drained()
		require.Equal(t, map[string]int{"orders.route.mailer mailer,audit": 43}, b.subjects())
		p.Wipe() // refilled in the same way
		p.Start()
		b.refilled(1)
		require.Equal(t, map[string]int{"orders.route.mailer mailer,audit": 43}, b.subjects())
		require.NoError(t, r.stop())

		b.relay(options{config: outbox.Config{Route: events.Route{"mailer", "audit"}}})
		b.commit(orders(2)...)
		b.drained()
		require.Equal(t, map[string]int{"orders.route.mailer mailer,audit": 43, "orders.events": 2}, b.subjects())
	})
}

func TestRouteOfTheRelayIsChecked(t *testing.T) {
	t.Parallel()
	for _, c := range []outbox.Config{
		{Sequential: true}, {Sequential: true, Route: events.Route{"A"}}, {Sequential: true, Route: events.Route{"a", "a"}},
		{Sequential: true, Route: events.Route{"a"}, Stream: "other", Topic: "other.x"},
		{Sequential: true, Route: events.Route{"a", "b"}, MaxBytes: 8<<20 - 1},
	} {
		c.Holder = "h"
		require.ErrorContains(t, c.Validate(), "route")
	}
}

// TestThePurgeGoesOnAlongARoute: each floor moves with the consumer's own messages only, and the last steps stand behind
// thousands of others.
func TestThePurgeGoesOnAlongARoute(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b *bundle) {
		looks, hook := looking()
		c := onRoute("mailer", "audit")
		r := b.relay(options{config: c, hook: hook, purgeEvery: often})
		b.commit(orders(10)...)
		b.drained()
		mailer, audit := b.reader("mailer"), b.reader("audit")
		b.reader("shop")
		b.register("mailer")
		b.step(mailer, 10)
		b.commit(orders(10)...)
		b.drained()
		b.age()
		b.eventually(func() bool { return r.metric(t, "relay_purge_blocked") == 1 }, "audit is on the route and not registered")
		b.purgedTwice(looks)
		require.EqualValues(t, 1, b.firstSeq())
		b.register("audit")
		b.register("shop")                                                                         // not on the route: it gets nothing, and holds up nothing
		b.eventually(func() bool { return b.firstSeq() == 11 }, "what went on to audit is purged") // 11 to 20 is for audit
		b.step(audit, 4)
		b.eventually(func() bool { return b.firstSeq() == 15 }, "and what audit has")
		b.purgedTwice(looks)
		require.EqualValues(t, 15, b.firstSeq(), "and nothing that it has not")

		b.step(audit, 6) // its floor is 20 now, and what comes next for it 31
		b.eventually(func() bool { return b.firstSeq() == 21 }, "up to what mailer has not")
		b.step(mailer, 10)
		b.eventually(func() bool { return b.firstSeq() == 31 }, "a floor that stands still holds up nothing that is for others")
		require.Zero(t, r.metric(t, "relay_purge_blocked"))
	})
}

// TestAFreshDurableIsNotOutrun: at the moment of its making it says that nothing is pending.
func TestAFreshDurableIsNotOutrun(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b *bundle) {
		looks, hook := looking()
		b.relay(options{config: onRoute("mailer"), hook: hook, purgeEvery: often})
		b.commit(orders(500)...)
		b.drained()
		b.age()
		b.register("mailer")
		mailer := b.reader("mailer")
		b.purgedTwice(looks)
		b.purgedTwice(looks)
		require.EqualValues(t, 1, b.firstSeq())
		b.acknowledge(mailer, 500)
		b.eventually(func() bool { return b.firstSeq() == 501 }, "purged")
	})
}

// TestThereIsRoomForEveryStep: consumers that were away find a stream that the relay has filled as far as it may, and can
// still hand on everything; then the relay goes on.
func TestThereIsRoomForEveryStep(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b *bundle) {
		c := onRoute("mailer", "audit", "loyalty")
		c.MaxBytes = 12 << 20
		r := b.relay(options{config: c, purgeEvery: often})
		const n = 300
		for o := range n / 10 {
			var rows []outbox.Row
			for v := range int64(10) {
				rows = append(rows, row(fmt.Sprint("order-", o), v+1, 20_000))
			}
			b.commit(rows...)
		}
		b.eventually(func() bool { return r.metric(t, "relay_stream_full_total") > 1 }, "the relay does not stop")
		there := b.subjects()["orders.route.mailer mailer,audit,loyalty"]
		require.Less(t, there, n)
		require.Greater(t, there, 50, "a good share of the stream is used")

		names := []string{"mailer", "audit", "loyalty"}
		var all []jetstream.Consumer
		for _, name := range names {
			all = append(all, b.reader(name))
			b.register(name)
		}
		for _, c := range all { // without the purge's help: nobody has everything
			b.step(c, there)
		}
		done := there
		for done < n {
			b.eventually(func() bool {
				info, err := all[0].Info(t.Context())
				return err == nil && info.NumPending > 0
			}, "the relay does not go on")
			info, err := all[0].Info(t.Context())
			require.NoError(t, err)
			for _, c := range all {
				b.step(c, int(info.NumPending))
			}
			done += int(info.NumPending)
		}
		b.drained()
	})
}

// TestParallelLeavesRoomForWhatIsUnderWay: after a change of the mode what is on a route still makes its steps.
func TestParallelLeavesRoomForWhatIsUnderWay(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b *bundle) {
		c := onRoute("mailer", "audit")
		c.MaxBytes = 8 << 20
		r := b.relay(options{config: c})
		b.commit(row("first", 1, 500_000), row("first", 2, 500_000))
		b.drained()
		require.NoError(t, r.stop())

		c.Sequential = false
		r = b.relay(options{config: c, purgeEvery: often})
		for v := range int64(20) {
			b.commit(row("second", v+1, 500_000))
		}
		b.eventually(func() bool { return r.metric(t, "relay_stream_full_total") > 1 }, "the relay does not stop")
		require.Less(t, b.subjects()["orders.events"], 6)
		mailer, audit := b.reader("mailer"), b.reader("audit")
		b.register("mailer")
		b.register("audit")
		b.step(mailer, 2)
		there := b.subjects()["orders.events"]
		b.step(mailer, there)
		b.step(audit, there+2)
		b.eventually(func() bool { return b.subjects()["orders.events"] >= 13 }, "the relay has the stream to itself again")
	})
}

// TestLostStepsAreNoticed: the broker comes back with less, and all that is missing is what consumers had handed on.
// The durables get new names, so that everybody reads again.
func TestLostStepsAreNoticed(t *testing.T) {
	t.Parallel()
	eachProcess(t, func(t *testing.T, b *bundle, p *brokertest.Process) {
		r := b.relay(options{config: onRoute("mailer", "audit")})
		b.commit(orders(3)...)
		b.drained()
		p.Stop()
		copied := t.TempDir()
		require.NoError(t, os.CopyFS(copied, os.DirFS(p.Dir)))
		p.Start()
		mailer := b.reader("mailer")
		b.step(mailer, 3)
		b.eventually(func() bool { return r.metric(t, "relay_stream_sequence") == 6 }, "the leader has seen the steps")
		p.Kill()
		require.NoError(t, os.RemoveAll(p.Dir))
		require.NoError(t, os.CopyFS(p.Dir, os.DirFS(copied)))
		p.Start()
		b.eventually(func() bool { return b.number(`SELECT generation FROM relay_state`) == 2 }, "a new generation")
		b.refilled(1)
		require.Equal(t, map[string]int{"orders.route.mailer mailer,audit": 3}, b.subjects())
	})
}
