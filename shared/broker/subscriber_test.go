package broker_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/broker/brokertest"
	"github.com/stretchr/testify/require"
)

// pending is how many messages the durable has delivered and not seen settled.
func (b *bundle) pending(t testing.TB, durable string) int {
	t.Helper()
	c, err := b.conn.JS.Consumer(context.WithoutCancel(t.Context()), stream, durable)
	require.NoError(t, err)
	return c.CachedInfo().NumAckPending
}

func infoOf(t testing.TB, m *message.Message) broker.Info {
	t.Helper()
	info, ok := broker.InfoOf(m)
	require.True(t, ok)
	return info
}

func TestNewSubscriberChecksItsConfig(t *testing.T) {
	t.Parallel()
	for _, sc := range []broker.SubscriberConfig{
		{Group: "a.b"}, {Group: "a b"}, {Group: "*"}, {Group: "a/b"}, {MaxInFlight: -1}, {MaxInFlight: 10_001},
		{AckWait: time.Millisecond}, {NackDelay: -1}, {CloseTimeout: -1},
	} {
		_, err := broker.NewSubscriber(nil, sc)
		require.Error(t, err, "%+v", sc)
	}
}

func TestSubscribeRefusesNoTopic(t *testing.T) {
	t.Parallel()
	s := subscriber(t, brokertest.Connect(t, brokertest.Server(t)), broker.SubscriberConfig{})
	for _, topic := range []string{"", "a b", "*.x", ">", ".x"} {
		_, err := s.Subscribe(t.Context(), topic)
		require.Error(t, err, topic)
	}
	require.NoError(t, s.Close())
	_, err := s.Subscribe(t.Context(), topic)
	require.ErrorIs(t, err, broker.ErrClosed)
}

func TestSubscriberHandsOutNoMoreThanItMay(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.publish(t, 0, 50)
	ch := subscribe(t, subscriber(t, b.conn, broker.SubscriberConfig{MaxInFlight: 7}), topic)
	require.Eventually(t, func() bool { return len(ch) == 7 }, soon, tick)
	none(t, nil, 100*time.Millisecond)
	require.Len(t, ch, 7)
	require.Equal(t, 7, b.pending(t, "g-0"))
	for i := range 50 {
		m := receive(t, ch)
		require.Equal(t, fmt.Sprint(i), string(m.Payload))
		m.Ack()
	}
}

func TestReplicasShare(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first := subscribe(t, subscriber(t, b.conn, broker.SubscriberConfig{MaxInFlight: 5}), topic)
	second := subscribe(t, subscriber(t, b.conn, broker.SubscriberConfig{MaxInFlight: 5}), topic)
	b.publish(t, 0, 500)
	seen, counts := map[string]bool{}, [2]int{}
	for len(seen) < 500 {
		var m *message.Message
		select {
		case m = <-first:
			counts[0]++
		case m = <-second:
			counts[1]++
		case <-time.After(soon):
			require.Fail(t, "no message")
		}
		require.False(t, seen[string(m.Payload)], "came twice")
		seen[string(m.Payload)] = true
		m.Ack()
	}
	require.Greater(t, counts[0], 100)
	require.Greater(t, counts[1], 100)
}

func TestSlowHandlerKeepsItsMessage(t *testing.T) {
	t.Parallel()
	b := setup(t)
	sc := broker.SubscriberConfig{AckWait: 300 * time.Millisecond}
	slow := subscribe(t, subscriber(t, b.conn, sc), topic)
	b.publish(t, 0, 1)
	m := receive(t, slow)
	other := subscribe(t, subscriber(t, b.conn, sc), topic)
	none(t, other, 5*sc.AckWait)
	require.Empty(t, slow)
	m.Ack()
	require.Eventually(t, func() bool { return b.pending(t, "g-0") == 0 }, soon, tick)
}

func TestNackComesAgainAfterItsDelay(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const delay = 300 * time.Millisecond
	ch := subscribe(t, subscriber(t, b.conn, broker.SubscriberConfig{NackDelay: delay}), topic)
	b.publish(t, 0, 1)
	m := receive(t, ch)
	require.Equal(t, uint64(1), infoOf(t, m).Deliveries)
	nacked := time.Now()
	m.Nack()
	<-m.Context().Done()
	m = receive(t, ch)
	require.GreaterOrEqual(t, time.Since(nacked), delay)
	require.Less(t, time.Since(nacked), 4*time.Second, "not left to the ack deadline")
	require.Equal(t, uint64(2), infoOf(t, m).Deliveries)
	m.Ack()
}

// TestPoison: whatever arrives is handed on and can be settled; the next message comes.
func TestPoison(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ch := subscribe(t, subscriber(t, b.conn, broker.SubscriberConfig{MaxInFlight: 1}), topic)
	noise := make([]byte, 900_000)
	for i := range noise {
		noise[i] = byte(i * 7)
	}
	for name, c := range map[string]struct {
		m         *nats.Msg
		malformed bool
	}{
		"empty":                      {&nats.Msg{}, false},
		"noise":                      {&nats.Msg{Data: noise}, false},
		"two values":                 {&nats.Msg{Header: nats.Header{"A": {"1", "2"}}}, true},
		"two publish ids":            {&nats.Msg{Header: nats.Header{"Nats-Msg-Id": {"two-1", "two-2"}}}, true},
		"two uuids":                  {&nats.Msg{Header: nats.Header{broker.MetaUUID: {"1", "2"}}}, true},
		"empty value":                {&nats.Msg{Header: nats.Header{"A": {""}}}, false},
		"looks like a time-out":      {&nats.Msg{Header: nats.Header{"Status": {"408"}}}, false},
		"looks like a lost consumer": {&nats.Msg{Header: nats.Header{"Status": {"409"}, "Description": {"Consumer Deleted"}}}, false},
		"looks like no responders":   {&nats.Msg{Header: nats.Header{"Status": {"503"}}}, false},
	} {
		c.m.Subject = topic
		_, err := b.conn.JS.PublishMsg(t.Context(), c.m)
		require.NoError(t, err, name)
		m := receive(t, ch)
		require.Equal(t, len(c.m.Data), len(m.Payload), name)
		require.NotEmpty(t, m.UUID, name)
		info := infoOf(t, m)
		require.Equal(t, c.malformed, info.Malformed != "", name)
		for k, v := range c.m.Header {
			require.Equal(t, v, info.Headers[k], name)
		}
		m.Ack()
	}
	require.Eventually(t, func() bool { return b.pending(t, "g-0") == 0 }, soon, tick)
}

// TestPoisonHeaders sends header blocks that no client library would send.
func TestPoisonHeaders(t *testing.T) {
	t.Parallel()
	server := brokertest.StartProcess(t)
	b := setupOn(t, brokertest.ConnectURL(t, server.URL))
	ch := subscribe(t, subscriber(t, b.conn, broker.SubscriberConfig{MaxInFlight: 1}), topic)
	raw, err := net.Dial("tcp", strings.TrimPrefix(server.URL, "nats://"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = raw.Close() })
	_, err = raw.Write([]byte("CONNECT {\"verbose\":false,\"headers\":true}\r\n"))
	require.NoError(t, err)
	for i, headers := range []string{
		"NATS/1.0\r\nno colon\r\n\r\n",
		"NATS/1.0\r\n\x00\xff: \xff\r\n\r\n",
		"NATS/1.0 503 trouble\r\n\r\n",
		"NATS/1.0\r\nA: 1\r\nA: 2\r\n\r\n",
		"NATS/9.9\r\n\r\n",
		"\r\n\r\n",
	} {
		payload := fmt.Sprint(i)
		_, err := fmt.Fprintf(raw, "HPUB %s %d %d\r\n%s%s\r\n", topic, len(headers), len(headers)+len(payload), headers, payload)
		require.NoError(t, err)
		m := receive(t, ch)
		require.Equal(t, payload, string(m.Payload))
		require.Equal(t, i == 3, infoOf(t, m).Malformed != "")
		m.Ack()
	}
}

func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s := subscriber(t, b.conn, broker.SubscriberConfig{MaxInFlight: 10, AckWait: time.Minute})
	ch := subscribe(t, s, topic)
	b.publish(t, 0, 20)
	held := receive(t, ch)
	require.Eventually(t, func() bool { return len(ch) == 9 }, soon, tick)
	s.Pause()
	s.Pause()
	require.Eventually(t, func() bool { return len(ch) == 0 }, soon, tick)
	// What was buffered is free at once for a replica that works: only the held message is missing.
	other := subscriber(t, b.conn, broker.SubscriberConfig{MaxInFlight: 20, AckWait: time.Minute})
	rest := subscribe(t, other, topic)
	for range 19 {
		receive(t, rest).Ack()
	}
	none(t, rest, 100*time.Millisecond)
	require.NoError(t, other.Close())
	held.Ack()
	b.publish(t, 20, 5)
	none(t, ch, 300*time.Millisecond)
	s.Resume()
	s.Resume()
	for range 5 {
		receive(t, ch).Ack()
	}
	require.Eventually(t, func() bool { return b.pending(t, "g-0") == 0 }, soon, tick)
}

func TestClosePaused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s := subscriber(t, b.conn, broker.SubscriberConfig{})
	s.Pause()
	ch := subscribe(t, s, topic)
	require.NoError(t, s.Close())
	_, open := <-ch
	require.False(t, open)
}

func TestAckFloor(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s := subscriber(t, b.conn, broker.SubscriberConfig{})
	floor := func() uint64 {
		n, err := s.AckFloor(t.Context(), topic)
		require.NoError(t, err)
		return n
	}
	require.Zero(t, floor(), "no durable")
	n, err := s.AckFloor(t.Context(), "nowhere.x")
	require.NoError(t, err)
	require.Zero(t, n, "no stream")
	b.publish(t, 0, 5)
	ch := subscribe(t, s, topic)
	var got []*message.Message
	for range 5 {
		got = append(got, receive(t, ch))
	}
	got[0].Ack()
	got[1].Ack()
	got[3].Ack()
	require.Eventually(t, func() bool { return floor() == 2 }, soon, tick)
	got[2].Ack()
	require.Eventually(t, func() bool { return floor() == 4 }, soon, tick)
	got[4].Ack()
	require.Eventually(t, func() bool { return floor() == 5 }, soon, tick)
}

func TestSubscriberWithoutGroupHasItsOwn(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.publish(t, 0, 3)
	s, err := broker.NewSubscriber(b.conn, broker.SubscriberConfig{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	for range 2 {
		ch := subscribe(t, s, topic)
		for i := range 3 {
			m := receive(t, ch)
			require.Equal(t, fmt.Sprint(i), string(m.Payload))
			m.Ack()
		}
	}
	require.NoError(t, s.Close())
	st, err := b.conn.JS.Stream(t.Context(), stream)
	require.NoError(t, err)
	require.Zero(t, st.CachedInfo().State.Consumers, "they end with the subscription")
}

// TestOneTopicPerGroup: the second topic waits and leaves the first one's durable as it is.
func TestOneTopicPerGroup(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ch := subscribe(t, subscriber(t, b.conn, broker.SubscriberConfig{}), topic)
	b.publish(t, 0, 1)
	receive(t, ch).Ack()
	other := subscribe(t, subscriber(t, b.conn, broker.SubscriberConfig{}), "orders.route.x")
	_, err := b.pub.PublishOne(t.Context(), "orders.route.x", newMessage("x"))
	require.NoError(t, err)
	none(t, other, 200*time.Millisecond)
	b.publish(t, 1, 1)
	receive(t, ch).Ack()
}

func TestOnDurableComesBeforeTheFirstMessage(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.publish(t, 0, 1)
	names := make(chan string, 10)
	let := make(chan struct{})
	ch := subscribe(t, subscriber(t, b.conn, broker.SubscriberConfig{OnDurable: func(_ context.Context, name string) {
		names <- name
		<-let
	}}), topic)
	require.Equal(t, "g-0", <-names)
	require.Zero(t, b.pending(t, "g-0"))
	require.Empty(t, ch)
	close(let)
	receive(t, ch).Ack()
	require.Empty(t, names)
}
