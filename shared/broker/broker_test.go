package broker_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/broker/brokertest"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	stream = "orders"
	topic  = "orders.events"
	soon   = 10 * time.Second // of anything that a test waits for
	tick   = 5 * time.Millisecond
)

// bundle is what most tests need.
type bundle struct {
	conn *broker.Conn
	pub  *broker.Publisher
}

func setup(t testing.TB) *bundle {
	t.Helper()
	return setupOn(t, brokertest.Connect(t, brokertest.Server(t)))
}

func setupOn(t testing.TB, conn *broker.Conn) *bundle {
	t.Helper()
	ensure(t, conn, broker.StreamConfig{Name: stream})
	pub := broker.NewPublisher(conn, broker.PublisherConfig{})
	t.Cleanup(func() { require.NoError(t, pub.Close()) })
	return &bundle{conn: conn, pub: pub}
}

func ensure(t testing.TB, conn *broker.Conn, c broker.StreamConfig) broker.StreamState {
	t.Helper()
	st, err := conn.EnsureStream(t.Context(), c)
	require.NoError(t, err)
	return st
}

// subscriber returns a subscriber of group "g" unless sc says otherwise, closed at the end of the test.
func subscriber(t testing.TB, conn *broker.Conn, sc broker.SubscriberConfig) *broker.Subscriber {
	t.Helper()
	if sc.Group == "" {
		sc.Group = "g"
	}
	if sc.CloseTimeout == 0 {
		sc.CloseTimeout = time.Second
	}
	s, err := broker.NewSubscriber(conn, sc)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func subscribe(t testing.TB, s *broker.Subscriber, topic string) <-chan *message.Message {
	t.Helper()
	ch, err := s.Subscribe(context.WithoutCancel(t.Context()), topic)
	require.NoError(t, err)
	return ch
}

func newMessage(payload string) *message.Message {
	return message.NewMessage(uuid.NewString(), message.Payload(payload))
}

// publish publishes n messages with payloads from, from+1, ….
func (b *bundle) publish(t testing.TB, from, n int) {
	t.Helper()
	for n > 0 {
		var batch []*message.Message
		for range min(n, 1000) {
			batch = append(batch, newMessage(fmt.Sprint(from)))
			from++
		}
		_, err := b.pub.PublishAtomic(t.Context(), topic, batch)
		require.NoError(t, err)
		n -= len(batch)
	}
}

// receive returns the next message or fails the test.
func receive(t testing.TB, ch <-chan *message.Message) *message.Message {
	t.Helper()
	select {
	case m, ok := <-ch:
		require.True(t, ok, "channel closed")
		return m
	case <-time.After(soon):
		require.Fail(t, "no message")
		return nil
	}
}

// none fails the test when a message comes within d.
func none(t testing.TB, ch <-chan *message.Message, d time.Duration) {
	t.Helper()
	select {
	case m, ok := <-ch:
		require.False(t, ok, "unexpected message %v", m)
	case <-time.After(d):
	}
}

func TestPublishSubscribe(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ch := subscribe(t, subscriber(t, b.conn, broker.SubscriberConfig{}), topic)
	m := newMessage("hello")
	m.Metadata.Set("kind", "greeting: ü")
	r, err := b.pub.PublishOne(t.Context(), topic, m)
	require.NoError(t, err)
	require.Equal(t, broker.Receipt{Sequence: 1}, r)
	got := receive(t, ch)
	require.Equal(t, m.UUID, got.UUID)
	require.Equal(t, "hello", string(got.Payload))
	require.Equal(t, "greeting: ü", got.Metadata.Get("kind"))
	info, ok := broker.InfoOf(got)
	require.True(t, ok)
	require.Equal(t, topic, info.Subject)
	require.Equal(t, uint64(1), info.Sequence)
	require.Equal(t, uint64(1), info.Deliveries)
	require.WithinDuration(t, time.Now(), info.StoredAt, time.Minute)
	require.Empty(t, info.Malformed)
	require.True(t, got.Ack())
	<-got.Context().Done()
}
