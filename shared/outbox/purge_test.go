package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/pillarbox/pillarbox/shared/events"
	"github.com/pillarbox/pillarbox/shared/outbox"
	"github.com/stretchr/testify/require"
)

const often = 20 * time.Millisecond

// durable makes a durable as a consumer of the first generation does.
func (b *bundle) durable(name string) jetstream.Consumer {
	b.t.Helper()
	c, err := b.conn.JS.CreateConsumer(b.t.Context(), events.StreamOrders, jetstream.ConsumerConfig{
		Durable: name + "-1", AckPolicy: jetstream.AckExplicitPolicy, FilterSubject: events.TopicOrders,
	})
	require.NoError(b.t, err)
	return c
}

func (b *bundle) register(name string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), patience)
	defer cancel()
	require.NoError(b.t, outbox.Register(ctx, b.conn, events.StreamOrders, name, name+"-1"))
}

// acknowledge takes and acknowledges n messages.
func (b *bundle) acknowledge(c jetstream.Consumer, n int) {
	b.t.Helper()
	batch, err := c.Fetch(n, jetstream.FetchMaxWait(patience))
	require.NoError(b.t, err)
	for m := range batch.Messages() {
		require.NoError(b.t, m.DoubleAck(b.t.Context()))
		n--
	}
	require.NoError(b.t, batch.Error())
	require.Zero(b.t, n)
}

func (b *bundle) firstSeq() uint64 {
	b.t.Helper()
	s, err := b.conn.Stream(b.t.Context(), events.StreamOrders)
	require.NoError(b.t, err)
	return s.FirstSeq
}

// age makes all that was published look older than the horizon.
func (b *bundle) age() { b.exec(`UPDATE relay_log SET created_at = created_at - 73 * 3600000000`) }

// purgedTwice waits until the purge has looked again, at what was there when this was called.
func (b *bundle) purgedTwice(looks chan struct{}) {
	for range 2 {
		select {
		case <-looks:
		case <-time.After(patience):
			require.FailNow(b.t, "the purge does not run")
		}
	}
}

func looking() (chan struct{}, func(string)) {
	looks := make(chan struct{})
	return looks, func(step string) {
		if step == "purge.done" {
			select {
			case looks <- struct{}{}:
			default:
			}
		}
	}
}

func TestThePurgeTakesWhatAllConsumersHaveAndTheHorizonHasNot(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b *bundle) {
		looks, hook := looking()
		r := b.relay(options{hook: hook, purgeEvery: often})
		b.commit(orders(10)...)
		b.drained()
		b.age()
		mailer, audit := b.durable("mailer"), b.durable("audit")
		b.acknowledge(mailer, 8)
		b.acknowledge(audit, 5)
		b.purgedTwice(looks)
		require.EqualValues(t, 1, b.firstSeq(), "purged though nobody has registered")
		b.register("audit") // first: its floor is the lower one
		b.register("mailer")
		b.eventually(func() bool { return b.firstSeq() == 6 }, "not purged to the lower floor")
		require.Zero(t, b.number(`SELECT count(*) FROM relay_log`), "the log was not trimmed")
		b.acknowledge(audit, 5)
		b.eventually(func() bool { return b.firstSeq() == 9 }, "not purged further")

		young := orders(5) // the horizon keeps these
		b.commit(young...)
		b.drained()
		b.acknowledge(mailer, 7)
		b.acknowledge(audit, 5)
		b.eventually(func() bool { return b.firstSeq() == 11 }, "not purged up to the horizon")
		b.purgedTwice(looks)
		require.Equal(t, ids(young), eventIDs(b.stream()))
		require.Zero(t, r.metric(t, "relay_purge_blocked"))
	})
}

func TestADurableThatIsMissingOrWasResetStopsThePurge(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b *bundle) {
		looks, hook := looking()
		r := b.relay(options{hook: hook, purgeEvery: often})
		b.commit(orders(10)...)
		b.drained()
		b.age()
		b.register("mailer") // without a durable
		b.eventually(func() bool { return r.metric(t, "relay_purge_blocked") == 1 }, "a missing durable went unseen")
		mailer := b.durable("mailer")
		b.acknowledge(mailer, 5)
		b.eventually(func() bool { return b.firstSeq() == 6 }, "not purged")
		b.eventually(func() bool { return r.metric(t, "relay_purge_blocked") == 0 }, "still blocked")

		require.NoError(t, b.conn.JS.DeleteConsumer(t.Context(), events.StreamOrders, "mailer-1"))
		mailer = b.durable("mailer")
		b.acknowledge(mailer, 5)
		b.eventually(func() bool { return r.metric(t, "relay_purge_blocked") == 1 }, "a reset durable went unseen")
		b.purgedTwice(looks)
		require.EqualValues(t, 6, b.firstSeq(), "purged though the durable was reset")
		b.register("mailer") // it has noticed
		b.eventually(func() bool { return b.firstSeq() == 11 }, "not purged again")
	})
}

func TestAConsumerOfAnEarlierGenerationStopsThePurge(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b *bundle) {
		r := b.relay(options{purgeEvery: often})
		b.commit(orders(3)...)
		b.drained()
		b.age()
		b.exec(`INSERT INTO consumers (name, durable) VALUES ('mailer', 'mailer-0')`)
		b.eventually(func() bool { return r.metric(t, "relay_purge_blocked") == 1 }, "an old durable went unseen")
		require.EqualValues(t, 1, b.firstSeq())
	})
}

func TestANearlyFullStreamGivesUpTheHorizonButNothingUnacknowledged(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b *bundle) {
		b.relay(options{config: outbox.Config{MaxBytes: 1 << 20}, purgeEvery: often})
		first := make([]outbox.Row, 9)
		for i := range first {
			first[i] = row("order", int64(i+1), 100_000)
		}
		b.commit(first...)
		b.drained()
		mailer := b.durable("mailer")
		b.acknowledge(mailer, 3)
		b.register("mailer")
		b.eventually(func() bool { return b.firstSeq() == 4 }, "not purged under pressure")
		second := make([]outbox.Row, 9)
		for i := range second {
			second[i] = row("order", int64(i+10), 100_000)
		}
		b.commit(second...)
		for range 15 {
			b.acknowledge(mailer, 1)
		}
		b.drained()
	})
}

func TestRegistration(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b *bundle) {
		early := make(chan error, 1)
		go func() { // before any store runs
			early <- outbox.Register(t.Context(), b.conn, events.StreamOrders, "early", "early-1")
		}()
		b.relay(options{})
		require.NoError(t, <-early)
		b.register("mailer")
		registered := b.number(`SELECT registered_at FROM consumers WHERE name = 'mailer'`)
		require.NoError(t, outbox.Register(t.Context(), b.conn, events.StreamOrders, "mailer", "mailer-2"))
		require.EqualValues(t, 2, b.number(`SELECT count(*) FROM consumers`))
		require.EqualValues(t, 1, b.number(`SELECT count(*) FROM consumers WHERE name = 'mailer' AND durable = 'mailer-2'
			AND registered_at >= $1`, registered))

		for _, bad := range [][2]string{{"", "d"}, {"Mailer", "d"}, {"mailer", ""}, {"mailer", "a.b"}, {"mailer", "a b"}} {
			require.ErrorIs(t, outbox.Register(t.Context(), b.conn, events.StreamOrders, bad[0], bad[1]), outbox.ErrRegistration)
		}
		for _, raw := range []string{"", "x", "[]", `{"name":"` + fmt.Sprint(make([]byte, 5000)) + `"}`} {
			reply, err := b.conn.NATS.Request("pillarbox.register."+events.StreamOrders, []byte(raw), patience)
			require.NoError(t, err)
			require.Contains(t, string(reply.Data), `"ok":false`)
		}
		for i := range 62 {
			b.exec(`INSERT INTO consumers (name, durable) VALUES ($1, 'd-1')`, fmt.Sprintf("other-%d", i))
		}
		require.ErrorIs(t, outbox.Register(t.Context(), b.conn, events.StreamOrders, "one-more", "d-1"), outbox.ErrRegistration)
		b.register("mailer")
	})
}

func TestRegisterEndsWithItsContext(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b *bundle) {
		gone := errors.New("gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- outbox.Register(ctx, b.conn, events.StreamOrders, "mailer", "mailer-1") }()
		cancel(gone)
		require.ErrorIs(t, <-ended, gone)
	})
}
