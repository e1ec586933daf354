package broker_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/broker/brokertest"
)

// TestFinishLeavesWhatIsHereToTheReader: after Finish the reader handles what was pulled, nothing
// more arrives, and nothing is left with the broker as unacknowledged.
func TestFinishLeavesWhatIsHereToTheReader(t *testing.T) {
	t.Parallel()
	conn := brokertest.Connect(t, brokertest.Server(t))
	publisher := broker.NewPublisher(conn, broker.PublisherConfig{AutoCreate: true})
	put := func(n int) {
		for range n {
			require.NoError(t, publisher.Publish("finish.events", message.NewMessage("", []byte("x"))))
		}
	}
	put(30)
	subscriber, err := broker.NewSubscriber(conn, broker.SubscriberConfig{Group: "g", MaxInFlight: 20})
	require.NoError(t, err)
	messages, err := subscriber.Subscribe(t.Context(), "finish.events")
	require.NoError(t, err)
	first := <-messages
	require.Eventually(t, func() bool { return len(messages) == 19 }, 20*time.Second, 5*time.Millisecond)
	subscriber.Finish()
	put(5)
	first.Ack()
	handled := 1
	for len(messages) > 0 {
		(<-messages).Ack()
		handled++
	}
	require.NoError(t, subscriber.Close())
	_, open := <-messages
	require.False(t, open)
	require.GreaterOrEqual(t, handled, 20)
	stream, err := conn.JS.Stream(t.Context(), "finish")
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		durable, err := stream.Consumer(t.Context(), "g-0")
		return err == nil && durable.CachedInfo().NumAckPending == 0 && durable.CachedInfo().AckFloor.Stream == uint64(handled)
	}, 20*time.Second, 5*time.Millisecond)
	_, err = subscriber.Subscribe(t.Context(), "finish.events")
	require.ErrorIs(t, err, broker.ErrClosed)
}
