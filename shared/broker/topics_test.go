package broker_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/broker/brokertest"
	"github.com/stretchr/testify/require"
)

const (
	route  = "orders.route.g"
	replay = "orders.replay.g"
)

func several() broker.SubscriberConfig {
	return broker.SubscriberConfig{Besides: []string{route, replay}}
}

// interleave publishes n messages on each of the topics in turn, with payloads topic/0, topic/1, ….
func (b *bundle) interleave(t testing.TB, from, n int, topics ...string) {
	t.Helper()
	for i := from; i < from+n; i++ {
		for _, topic := range topics {
			_, err := b.pub.PublishOne(t.Context(), topic, newMessage(fmt.Sprintf("%s/%d", topic, i)))
			require.NoError(t, err)
		}
	}
}

func payloads(t testing.TB, ch <-chan *message.Message, n int) (out []string) {
	t.Helper()
	for range n {
		m := receive(t, ch)
		out = append(out, string(m.Payload))
		m.Ack()
	}
	return out
}

func TestOneDurableForSeveralTopics(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s := subscriber(t, b.conn, several())
	ch := subscribe(t, s, topic)
	b.interleave(t, 0, 2, topic, route, "orders.route.other", replay)
	require.Equal(t, []string{
		topic + "/0", route + "/0", replay + "/0", topic + "/1", route + "/1", replay + "/1",
	}, payloads(t, ch, 6), "in the order of the stream")
	none(t, ch, 50*time.Millisecond)
	queue, err := b.conn.Queue(t.Context(), stream)
	require.NoError(t, err)
	require.Len(t, queue.Consumers, 1)
	require.ElementsMatch(t, []string{topic, route, replay}, queue.Consumers[0].Topics)
	require.Eventually(t, func() bool {
		floor, err := s.AckFloor(t.Context(), topic)
		return err == nil && floor == 8
	}, soon, tick)
}

func TestTopicsOfOneStreamOnly(t *testing.T) {
	t.Parallel()
	_, err := broker.NewSubscriber(nil, broker.SubscriberConfig{Besides: []string{"orders.>"}})
	require.ErrorContains(t, err, "no topic")
	s := subscriber(t, brokertest.Connect(t, brokertest.Server(t)), broker.SubscriberConfig{Besides: []string{"other.events"}})
	_, err = s.Subscribe(t.Context(), topic)
	require.ErrorContains(t, err, "another stream")
}

// TestDurableTakesMoreInPlace: a group that read one topic goes on with several where it was. What it had in flight
// comes again, what waited comes, nothing comes that it had.
func TestDurableTakesMoreInPlace(t *testing.T) {
	t.Parallel()
	b := setup(t)
	before := subscriber(t, b.conn, broker.SubscriberConfig{MaxInFlight: 4})
	ch := subscribe(t, before, topic)
	b.interleave(t, 0, 6, topic)
	require.Equal(t, []string{topic + "/0", topic + "/1"}, payloads(t, ch, 2))
	held := receive(t, ch) // its handler is still at work when the durable changes
	b.interleave(t, 0, 1, route)
	b.interleave(t, 6, 1, topic)
	made := b.created(t, "g-0")

	after := subscribe(t, subscriber(t, b.conn, several()), topic)
	// What stands before the place to which the durable has come is not for a topic that it takes later.
	require.Eventually(t, func() bool {
		c, err := b.conn.JS.Consumer(t.Context(), stream, "g-0")
		return err == nil && len(c.CachedInfo().Config.FilterSubjects) == 3
	}, soon, tick)
	held.Ack()
	require.NoError(t, before.Close())
	require.ElementsMatch(t, []string{
		topic + "/3", topic + "/4", topic + "/5", topic + "/6", route + "/0",
	}, payloads(t, after, 5))
	none(t, after, 50*time.Millisecond)
	require.Equal(t, made, b.created(t, "g-0"), "the same durable")
	require.Eventually(t, func() bool { return b.pending(t, "g-0") == 0 }, soon, tick)
}

// TestNoReplicaNarrowsTheDurable: one of another release that knows fewer topics, or others, takes none away.
func TestNoReplicaNarrowsTheDurable(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first := subscriber(t, b.conn, several())
	subscribe(t, first, topic)
	b.await(t, "g-0")
	require.NoError(t, first.Close())
	second := subscribe(t, subscriber(t, b.conn, broker.SubscriberConfig{Besides: []string{"orders.later"}}), topic)
	b.interleave(t, 0, 1, route, topic, replay, "orders.later")
	require.Len(t, payloads(t, second, 4), 4)
	other := subscriber(t, b.conn, broker.SubscriberConfig{})
	subscribe(t, other, "orders.else")
	require.Eventually(t, func() bool {
		err := other.Working()
		return err != nil && strings.Contains(err.Error(), "use another group")
	}, soon, tick)
}

func (b *bundle) await(t testing.TB, durable string) {
	t.Helper()
	require.Eventually(t, func() bool {
		_, err := b.conn.JS.Consumer(t.Context(), stream, durable)
		return err == nil
	}, soon, tick)
}

func (b *bundle) created(t testing.TB, durable string) time.Time {
	t.Helper()
	c, err := b.conn.JS.Consumer(context.WithoutCancel(t.Context()), stream, durable)
	require.NoError(t, err)
	return c.CachedInfo().Created
}
