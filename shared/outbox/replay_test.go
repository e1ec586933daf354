package outbox_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/pillarbox/pillarbox/shared/broker/brokertest"
	"github.com/pillarbox/pillarbox/shared/events"
	"github.com/pillarbox/pillarbox/shared/logs"
	"github.com/pillarbox/pillarbox/shared/outbox"
	"github.com/stretchr/testify/require"
)

var start = time.Unix(0, 0)

// subscriber reads all that is for it and remembers the ids in the order they came.
type subscriber struct {
	*outbox.Registrar
	b        *bundle
	name     string
	messages chan jetstream.Msg
	stop     func()
}

// subscribe makes a durable as a service does, announces it, and takes messages until the end of the test.
func (b *bundle) subscribe(name string, generation int, from time.Time) *subscriber {
	b.t.Helper()
	s := &subscriber{
		Registrar: outbox.NewRegistrar(b.conn, events.StreamOrders, name, logs.Discard()),
		b:         b, name: name, messages: make(chan jetstream.Msg, 10_000),
	}
	s.Ask(from)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); s.Run(ctx) }()
	s.stop = func() { cancel(); <-ended }
	b.t.Cleanup(s.stop)
	s.attach(generation)
	return s
}

func (s *subscriber) durable(generation int) string { return fmt.Sprintf("%s-%d", s.name, generation) }

// attach makes the durable and announces it.
func (s *subscriber) attach(generation int) jetstream.Consumer {
	t := s.b.t
	t.Helper()
	var c jetstream.Consumer
	s.b.eventually(func() (ok bool) {
		var err error
		c, err = s.b.conn.JS.CreateOrUpdateConsumer(t.Context(), events.StreamOrders, jetstream.ConsumerConfig{
			Durable: s.durable(generation), AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: 10_000,
			FilterSubjects: []string{events.TopicOrders, events.RouteTopic(s.name), events.ReplayTopic(s.name)},
		})
		return err == nil
	}, "no durable")
	s.Announce(t.Context(), s.durable(generation))
	return c
}

// take acknowledges what comes until the replay is complete, and returns the event ids of both kinds of topics.
func (s *subscriber) take(c jetstream.Consumer) (live, past []string) {
	t := s.b.t
	t.Helper()
	deadline := time.Now().Add(patience)
	for !s.Complete() {
		require.True(t, time.Now().Before(deadline), "the replay is not complete")
		batch, err := c.Fetch(1000, jetstream.FetchMaxWait(50*time.Millisecond))
		require.NoError(t, err)
		for m := range batch.Messages() {
			require.NoError(t, m.Ack())
			id, _, _ := strings.Cut(string(m.Data()), " ")
			if m.Subject() == events.TopicOrders {
				live = append(live, id)
			} else {
				require.Equal(t, events.ReplayTopic(s.name), m.Subject())
				past = append(past, id)
			}
		}
	}
	return live, past
}

func (b *bundle) replayState(name string) string {
	b.t.Helper()
	var state string
	err := b.db.Read().QueryRowContext(b.t.Context(), `SELECT state FROM replays WHERE name = $1`, name).Scan(&state)
	if err != nil {
		return err.Error()
	}
	return state
}

// purgeAll empties the stream by force.
func (b *bundle) purgeAll() {
	b.t.Helper()
	s, err := b.conn.JS.Stream(b.t.Context(), events.StreamOrders)
	require.NoError(b.t, err)
	require.NoError(b.t, s.Purge(b.t.Context()))
}

func TestANewSubscriberGetsTheWholeHistoryOnce(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b *bundle) {
		r := b.relay(options{})
		rows := append(history("order", 1, 20), orders(700)...)
		b.commit(rows...)
		b.drained()
		b.purgeAll() // the stream has nothing of it any more
		s := b.subscribe("stock", 1, start)
		live, past := s.take(s.attach(1))
		require.Empty(t, live)
		require.Equal(t, ids(rows), past, "in order")
		require.EqualValues(t, len(rows), r.metric(t, "relay_replayed_total"))
		require.Equal(t, "handled", b.replayState("stock"))

		// Only the first one counts; and nothing is replayed to a subscriber that did not ask.
		s.attach(1)
		b.eventually(s.Complete, "not complete after another start")
		b.register("audit")
		require.EqualValues(t, len(rows), r.metric(t, "relay_replayed_total"))
	})
}

// A subscriber that was removed and comes back gets another number, so that the stream's memory of publish ids
// does not swallow its second replay.
func TestARemovedSubscriberMayAskAgain(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b *bundle) {
		b.relay(options{})
		rows := orders(30)
		b.commit(rows...)
		b.drained()
		b.purgeAll()
		for range 2 {
			s := b.subscribe("stock", 1, start)
			_, past := s.take(s.attach(1))
			require.Equal(t, ids(rows), past)
			s.stop()
			require.NoError(t, b.conn.JS.DeleteConsumer(t.Context(), events.StreamOrders, "stock-1"))
			was, err := outbox.Deregister(t.Context(), b.conn, events.StreamOrders, "stock")
			require.NoError(t, err)
			require.True(t, was)
			require.Zero(t, b.number(`SELECT count(*) FROM replays`))
			b.purgeAll()
		}
	})
}

func TestAReplayBeginsAtItsTime(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b *bundle) {
		b.relay(options{})
		old, young := orders(20), orders(15)
		b.commit(old...)
		b.exec(`UPDATE events SET created_at = created_at - 3600000000`)
		b.commit(young...)
		b.drained()
		b.purgeAll()
		s := b.subscribe("recent", 1, time.Now().Add(-30*time.Minute))
		_, past := s.take(s.attach(1))
		require.Equal(t, ids(young), past)
		s = b.subscribe("future", 1, time.Now().Add(time.Hour))
		_, past = s.take(s.attach(1))
		require.Empty(t, past)
	})
}

// What stands in the outbox is not replayed: it comes live, and an order's dead row holds only what is behind it.
func TestWhatIsInTheOutboxComesLive(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b *bundle) {
		rows := orders(10)
		b.commit(rows...)
		b.exec(`UPDATE outbox SET dead_reason = 'refused' WHERE event_id = $1`, rows[4].Event.ID)
		b.relay(options{})
		b.drained()
		b.purgeAll()
		s := b.subscribe("stock", 1, start)
		live, past := s.take(s.attach(1))
		require.Empty(t, live)
		require.Equal(t, slices.Delete(ids(rows), 4, 5), past)
	})
}

// Two replays take turns, and both deliver all.
func TestReplaysSideBySide(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b *bundle) {
		rows := orders(1500)
		b.commit(rows...)
		b.relay(options{})
		b.drained()
		b.purgeAll()
		one, two := b.subscribe("one", 1, start), b.subscribe("two", 1, start)
		b.eventually(func() bool {
			return b.replayState("one") == "published" && b.replayState("two") == "published"
		}, "not published")
		turns := 1
		topics := b.topics()
		for n := 1; n < len(topics); n++ {
			if topics[n] != topics[n-1] {
				turns++
			}
		}
		require.Greater(t, turns, 4, "one after the other")
		_, past := one.take(one.attach(1))
		require.Equal(t, ids(rows), past)
		_, past = two.take(two.attach(1))
		require.Equal(t, ids(rows), past)
	})
}

// topics are those of the messages of the stream, in order.
func (b *bundle) topics() (all []string) {
	b.t.Helper()
	s, err := b.conn.JS.Stream(b.t.Context(), events.StreamOrders)
	require.NoError(b.t, err)
	state := s.CachedInfo().State
	for seq := state.FirstSeq; seq <= state.LastSeq; seq++ {
		if m, err := s.GetMsg(b.t.Context(), seq); err == nil {
			all = append(all, m.Subject)
		}
	}
	return all
}

// Live events that never cease leave a replay its share.
func TestAReplayGoesOnUnderLoad(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b *bundle) {
		rows := orders(300)
		b.commit(rows...)
		var asked atomic.Bool
		b.relay(options{hook: func(step string) {
			if step == "relay.published" && asked.Load() && b.replayState("stock") != "handled" {
				b.commit(orders(1)...) // there is always one more
			}
		}})
		b.drained()
		b.purgeAll()
		s := b.subscribe("stock", 1, start)
		asked.Store(true)
		b.commit(orders(1)...)
		live, past := s.take(s.attach(1))
		require.Equal(t, ids(rows), past[:len(rows)])
		require.NotEmpty(t, live)
	})
}

// A page that was published and not written down is recognized, and none is left out.
func TestAReplayGoesOnAfterACrash(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b *bundle) {
		const all = 600
		b.commit(orders(all)...)
		r := b.relay(options{})
		b.drained()
		require.NoError(t, r.stop())
		for n, step := range []string{"replay.read", "replay.published", "replay.settled", "replay.acknowledged", "replay.handled"} {
			name := fmt.Sprintf("s%d", n)
			b.purgeAll()
			var usurped atomic.Int64
			second := b.relay(options{hook: func(now string) {
				if now == step && usurped.Add(1) == 1 {
					b.usurp()
				}
			}})
			s := b.subscribe(name, 1, start)
			_, past := s.take(s.attach(1))
			require.Len(t, past, all, "step %s", step)
			slices.Sort(past)
			require.Len(t, slices.Compact(past), all, "step %s", step)
			require.Positive(t, usurped.Load())
			s.stop()
			require.NoError(t, second.stop())
		}
	})
}

// A broker that comes back without the replay, or without its end, gets all of it again.
func TestAnUnfinishedReplayStartsOver(t *testing.T) {
	t.Parallel()
	eachProcess(t, func(t *testing.T, b *bundle, p *brokertest.Process) {
		b.relay(options{})
		rows := orders(400)
		b.commit(rows...)
		b.drained()
		b.purgeAll()
		s := b.subscribe("stock", 1, start)
		b.eventually(func() bool { return b.replayState("stock") == "published" }, "not published")
		number := b.number(`SELECT number FROM replays`)
		p.Wipe()
		p.Start()
		b.refilled(1)
		c := s.attach(1)
		live, past := s.take(c)
		require.Equal(t, ids(rows), past)
		require.Equal(t, ids(rows), live, "the refill is for everyone")
		require.Greater(t, b.number(`SELECT number FROM replays`), number)

		p.Wipe() // what is handled stays so
		p.Start()
		b.refilled(2)
		require.Equal(t, "handled", b.replayState("stock"))
	})
}

// An end of the stream that held nothing but replayed events is missed too.
func TestALostTailOfAReplayIsFound(t *testing.T) {
	t.Parallel()
	eachProcess(t, func(t *testing.T, b *bundle, p *brokertest.Process) {
		r := b.relay(options{})
		rows := orders(300)
		b.commit(rows...)
		b.drained()
		b.durable("audit")
		require.NoError(t, r.stop())
		p.Stop()
		copied := t.TempDir()
		require.NoError(t, os.CopyFS(copied, os.DirFS(p.Dir)))
		p.Start()
		b.relay(options{})
		s := b.subscribe("stock", 1, start)
		b.eventually(func() bool { return b.replayState("stock") == "published" }, "not published")
		p.Kill()
		restore(t, p, copied)
		b.refilled(1)
		require.EqualValues(t, 2, b.number(`SELECT generation FROM relay_state`))
		_, past := s.take(s.attach(2))
		require.Equal(t, ids(rows), past)
	})
}

// A stream with half a megabyte of room takes a replay of two and a half: what is handled makes room, for the subscriber that reads as
// for the others, whose floors stand still meanwhile.
func TestAReplayIsBoundedByTheStream(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b *bundle) {
		const limit = 1 << 20
		r := b.relay(options{config: outbox.Config{MaxBytes: limit}, purgeEvery: often})
		rows := orders(1)
		b.commit(rows...)
		b.drained()
		audit := b.durable("audit")
		b.register("audit")
		acknowledged := 0
		for range 25 {
			more := make([]outbox.Row, 20)
			for i := range more {
				more[i] = row(fmt.Sprintf("order-%d", len(rows)+i), 1, 5000)
			}
			rows = append(rows, more...)
			b.commit(more...)
			b.eventually(func() bool {
				batch, err := audit.FetchNoWait(100)
				require.NoError(t, err)
				for m := range batch.Messages() {
					require.NoError(t, m.Ack())
					acknowledged++
				}
				s, err := outbox.ReadStatus(t.Context(), b.db)
				return err == nil && s.Waiting == 0 && acknowledged == len(rows)
			}, "not published and acknowledged")
		}
		full := r.metric(t, "relay_stream_full_total")
		var most uint64
		s := b.subscribe("stock", 1, start)
		c := s.attach(1)
		b.eventually(func() bool {
			state, err := b.conn.Stream(t.Context(), events.StreamOrders)
			require.NoError(t, err)
			most = max(most, state.Bytes)
			return most > limit/3 // it comes, and nobody takes it
		}, "no replay")
		_, past := s.take(c)
		require.Equal(t, ids(rows), past[len(past)-len(rows):])
		require.LessOrEqual(t, most, uint64(limit))
		require.Equal(t, full, r.metric(t, "relay_stream_full_total"), "live events had no room")
	})
}
