package broker_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/broker/brokertest"
	"github.com/pillarbox/pillarbox/shared/logs"
	"github.com/stretchr/testify/require"
)

// outcomes are all that a publish error can be known as.
var outcomes = []error{broker.ErrDuplicate, broker.ErrFull, broker.ErrRefused, broker.ErrNoStream, broker.ErrDisconnected, broker.ErrClosed}

// requireOutcome demands that err is want (nil: unknown) and nothing else.
func requireOutcome(t *testing.T, want, err error) {
	t.Helper()
	require.Error(t, err)
	for _, o := range outcomes {
		require.Equal(t, o == want, errors.Is(err, o), "%v is %v", err, o)
	}
}

func (b *bundle) messages(t *testing.T) uint64 {
	t.Helper()
	st, err := b.conn.Stream(t.Context(), stream)
	require.NoError(t, err)
	return st.Messages
}

func TestPublishOneIsStoredOncePerPublishID(t *testing.T) {
	t.Parallel()
	b := setup(t)
	m := newMessage("a")
	first, err := b.pub.PublishOne(t.Context(), topic, m)
	require.NoError(t, err)
	again, err := b.pub.PublishOne(t.Context(), topic, m)
	require.NoError(t, err)
	require.Equal(t, broker.Receipt{Sequence: first.Sequence, Duplicate: true}, again)

	// Another publish id: stored again, with the same UUID.
	refill := m.Copy()
	refill.Metadata.Set(broker.MetaPublishID, "refill-1:"+m.UUID)
	r, err := b.pub.PublishOne(t.Context(), topic, refill)
	require.NoError(t, err)
	require.Equal(t, broker.Receipt{Sequence: 2}, r)
	ch := subscribe(t, subscriber(t, b.conn, broker.SubscriberConfig{}), topic)
	for range 2 {
		got := receive(t, ch)
		require.Equal(t, m.UUID, got.UUID)
		got.Ack()
	}
}

func TestPublishKeepsOrderAndStopsAtTheFirstError(t *testing.T) {
	t.Parallel()
	b := setup(t)
	bad := newMessage("bad")
	bad.Metadata.Set("line\nbreak", "x")
	err := b.pub.Publish(topic, newMessage("1"), newMessage("2"), bad, newMessage("4"))
	requireOutcome(t, broker.ErrRefused, err)
	ch := subscribe(t, subscriber(t, b.conn, broker.SubscriberConfig{}), topic)
	for _, want := range []string{"1", "2"} {
		m := receive(t, ch)
		require.Equal(t, want, string(m.Payload))
		m.Ack()
	}
	require.Equal(t, uint64(2), b.messages(t))
}

func TestPublishRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	with := func(key, value string) *message.Message {
		m := newMessage("x")
		m.Metadata.Set(key, value)
		return m
	}
	badID := message.NewMessage("two\nlines", nil)
	for name, c := range map[string]struct {
		topic string
		m     *message.Message
	}{
		"over the broker's limit":  {topic, newMessage(strings.Repeat("x", 1<<20))},
		"headers over 64 KiB":      {topic, with("big", strings.Repeat("x", 70_000))},
		"header name with colon":   {topic, with("a:b", "x")},
		"header name with blank":   {topic, with("a b", "x")},
		"empty header name":        {topic, with("", "x")},
		"header value of two rows": {topic, with("a", "x\r\nb: y")},
		"header value with blanks": {topic, with("a", " x")},
		"publish id of two rows":   {topic, badID},
		"topic with blank":         {"orders.a b", newMessage("x")},
		"topic with wildcard":      {"orders.*", newMessage("x")},
		"topic with empty token":   {"orders..x", newMessage("x")},
		"no topic":                 {"", newMessage("x")},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := b.pub.PublishOne(t.Context(), c.topic, c.m)
			requireOutcome(t, broker.ErrRefused, err)
			_, err = b.pub.PublishAtomic(t.Context(), c.topic, []*message.Message{newMessage("y"), c.m})
			requireOutcome(t, broker.ErrRefused, err)
			require.Zero(t, b.messages(t))
		})
	}
}

func TestPublishRefusedByStreamsMessageLimit(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s, err := b.conn.JS.Stream(t.Context(), stream)
	require.NoError(t, err)
	c := s.CachedInfo().Config
	c.MaxMsgSize = 1000
	_, err = b.conn.JS.UpdateStream(t.Context(), c)
	require.NoError(t, err)
	_, err = b.pub.PublishOne(t.Context(), topic, newMessage(strings.Repeat("x", 2000)))
	requireOutcome(t, broker.ErrRefused, err)
	_, err = b.pub.PublishAtomic(t.Context(), topic, []*message.Message{newMessage("a"), newMessage(strings.Repeat("x", 2000))})
	requireOutcome(t, broker.ErrRefused, err)
	require.Zero(t, b.messages(t))
}

func TestPublishWithoutStream(t *testing.T) {
	t.Parallel()
	b := setup(t)
	_, err := b.pub.PublishOne(t.Context(), "nowhere.events", newMessage("x"))
	requireOutcome(t, broker.ErrNoStream, err)
	_, err = b.pub.PublishAtomic(t.Context(), "nowhere.events", []*message.Message{newMessage("x"), newMessage("y")})
	requireOutcome(t, broker.ErrNoStream, err)
}

func TestPublishToFullStream(t *testing.T) {
	t.Parallel()
	b := setupOn(t, brokertest.Connect(t, brokertest.Server(t)))
	ensure(t, b.conn, broker.StreamConfig{Name: stream, MaxBytes: 10_000})
	ch := subscribe(t, subscriber(t, b.conn, broker.SubscriberConfig{}), topic)
	big := strings.Repeat("x", 4000)
	require.NoError(t, b.pub.Publish(topic, newMessage(big), newMessage(big)))
	_, err := b.pub.PublishOne(t.Context(), topic, newMessage(big))
	requireOutcome(t, broker.ErrFull, err)
	_, err = b.pub.PublishAtomic(t.Context(), topic, []*message.Message{newMessage("small"), newMessage(big)})
	requireOutcome(t, broker.ErrFull, err)
	require.Equal(t, uint64(2), b.messages(t), "nothing of the batch is stored, nothing confirmed is dropped")
	for range 2 {
		receive(t, ch).Ack()
	}
	// Room again: the refused message goes in with the same publish id.
	s, err := b.conn.JS.Stream(t.Context(), stream)
	require.NoError(t, err)
	require.NoError(t, s.Purge(t.Context(), jetstream.WithPurgeSequence(3)))
	_, err = b.pub.PublishOne(t.Context(), topic, newMessage(big))
	require.NoError(t, err)
}

func TestPublishAtomic(t *testing.T) {
	t.Parallel()
	b := setup(t)
	require.NoError(t, b.pub.Publish(topic, newMessage("0")))
	batch := []*message.Message{newMessage("1"), newMessage("2"), newMessage("3")}
	last, err := b.pub.PublishAtomic(t.Context(), topic, batch)
	require.NoError(t, err)
	require.Equal(t, uint64(4), last)
	ch := subscribe(t, subscriber(t, b.conn, broker.SubscriberConfig{}), topic)
	var received []*message.Message
	for i := range 4 {
		m := receive(t, ch)
		info, _ := broker.InfoOf(m)
		require.Equal(t, uint64(i+1), info.Sequence)
		require.Equal(t, string(rune('0'+i)), string(m.Payload))
		received = append(received, m)
		m.Ack()
	}
	// The messages are as they were: each can be published alone, and is known.
	for i, m := range batch {
		r, err := b.pub.PublishOne(t.Context(), topic, m)
		require.NoError(t, err)
		require.Equal(t, broker.Receipt{Sequence: uint64(i + 2), Duplicate: true}, r)
	}
	// A received one can be published on: the batch's headers do not come along.
	onward := received[2].Copy()
	onward.UUID = "onward"
	r, err := b.pub.PublishOne(t.Context(), "orders.route.x", onward)
	require.NoError(t, err)
	require.Equal(t, uint64(5), r.Sequence)
}

func TestPublishAtomicDuplicate(t *testing.T) {
	t.Parallel()
	b := setup(t)
	known, fresh := newMessage("known"), newMessage("fresh")
	require.NoError(t, b.pub.Publish(topic, known))
	_, err := b.pub.PublishAtomic(t.Context(), topic, []*message.Message{fresh, known})
	requireOutcome(t, broker.ErrDuplicate, err)
	_, err = b.pub.PublishAtomic(t.Context(), topic, []*message.Message{fresh, fresh})
	requireOutcome(t, broker.ErrDuplicate, err)
	require.Equal(t, uint64(1), b.messages(t))
	// None of the batch is remembered: singles in order go through.
	r, err := b.pub.PublishOne(t.Context(), topic, fresh)
	require.NoError(t, err)
	require.Equal(t, broker.Receipt{Sequence: 2}, r)
}

func TestPublishAtomicSize(t *testing.T) {
	t.Parallel()
	b := setup(t)
	_, err := b.pub.PublishAtomic(t.Context(), topic, nil)
	require.Error(t, err)
	full := make([]*message.Message, 1001)
	for i := range full {
		full[i] = newMessage("x")
	}
	_, err = b.pub.PublishAtomic(t.Context(), topic, full)
	require.Error(t, err)
	last, err := b.pub.PublishAtomic(t.Context(), topic, full[:1000])
	require.NoError(t, err)
	require.Equal(t, uint64(1000), last)
	last, err = b.pub.PublishAtomic(t.Context(), topic, full[1000:])
	require.NoError(t, err)
	require.Equal(t, uint64(1001), last)
}

// An answer that does not come leaves the outcome unknown; without a connection nothing is sent.
func TestPublishWithoutAnswer(t *testing.T) {
	t.Parallel()
	server := brokertest.StartProcess(t)
	b := setupOn(t, brokertest.ConnectURL(t, server.URL))
	server.Freeze()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err := b.pub.PublishOne(ctx, topic, newMessage("x"))
	requireOutcome(t, nil, err)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	_, err = b.pub.PublishAtomic(ctx, topic, []*message.Message{newMessage("x"), newMessage("y")})
	requireOutcome(t, nil, err)
	server.Thaw()
	server.Kill()
	require.Eventually(t, func() bool { return !b.conn.NATS.IsConnected() }, soon, tick)
	_, err = b.pub.PublishOne(t.Context(), topic, newMessage("x"))
	requireOutcome(t, broker.ErrDisconnected, err)
	require.ErrorIs(t, b.conn.Ready(t.Context()), broker.ErrDisconnected)
	server.Start()
	require.Eventually(t, func() bool { return b.conn.Ready(t.Context()) == nil }, soon, tick)
	_, err = b.pub.PublishOne(t.Context(), topic, newMessage("x"))
	require.NoError(t, err)
}

// An answer that is on its way when the connection breaks never comes: nobody waits for it.
func TestPublishWhenTheConnectionBreaks(t *testing.T) {
	t.Parallel()
	server := brokertest.StartProcess(t)
	b := setupOn(t, brokertest.ConnectURL(t, server.URL))
	pub := broker.NewPublisher(b.conn, broker.PublisherConfig{Timeout: time.Hour})
	server.Freeze()
	sent, ended := b.conn.NATS.Stats().OutMsgs, make(chan error, 2)
	go func() {
		_, err := pub.PublishOne(t.Context(), topic, newMessage("x"))
		ended <- err
	}()
	go func() {
		_, err := pub.PublishAtomic(t.Context(), topic, []*message.Message{newMessage("y"), newMessage("z")})
		ended <- err
	}()
	require.Eventually(t, func() bool { return b.conn.NATS.Stats().OutMsgs == sent+3 }, soon, tick)
	server.Kill()
	for range 2 {
		select {
		case err := <-ended:
			requireOutcome(t, nil, err)
			require.ErrorContains(t, err, "the connection broke before the broker answered")
		case <-time.After(soon):
			require.Fail(t, "a publish still waits")
		}
	}
}

func TestPublisherClose(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := broker.NewPublisher(b.conn, broker.PublisherConfig{})
	require.NoError(t, p.Close())
	require.NoError(t, p.Close())
	requireOutcome(t, broker.ErrClosed, p.Publish(topic, newMessage("x")))
	require.NoError(t, b.pub.Publish(topic, newMessage("x")), "the connection is borrowed")
}

func TestPublisherCreatesStreams(t *testing.T) {
	t.Parallel()
	conn := brokertest.Connect(t, brokertest.Server(t))
	p := broker.NewPublisher(conn, broker.PublisherConfig{AutoCreate: true})
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	for _, topic := range []string{"plain", "two.tokens", "odd/name", "odd_name", `odd\name.x`, "täg.x"} {
		_, err := p.PublishOne(t.Context(), topic, newMessage(topic))
		require.NoError(t, err, topic)
		m := receive(t, subscribe(t, subscriber(t, conn, broker.SubscriberConfig{}), topic))
		require.Equal(t, topic, string(m.Payload))
		m.Ack()
	}
	// A stream that somebody removed is made again, at the second attempt at the latest.
	require.NoError(t, conn.JS.DeleteStream(t.Context(), "plain"))
	_, err := p.PublishOne(t.Context(), "plain", newMessage("x"))
	requireOutcome(t, broker.ErrNoStream, err)
	_, err = p.PublishOne(t.Context(), "plain", newMessage("x"))
	require.NoError(t, err)
}

func TestConnect(t *testing.T) {
	t.Parallel()
	_, err := broker.Connect(broker.Config{}, logs.Discard())
	require.Error(t, err)
	_, err = broker.Connect(broker.Config{URL: "nats://bad url:x"}, logs.Discard())
	require.Error(t, err)
	// No server yet: at once, and then as soon as there is one.
	server := brokertest.StartProcess(t)
	server.Stop()
	conn, err := broker.Connect(broker.Config{URL: server.URL}, nil)
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	require.ErrorIs(t, conn.Ready(t.Context()), broker.ErrDisconnected)
	server.Start()
	require.Eventually(t, func() bool { return conn.Ready(t.Context()) == nil }, soon, tick)
}
