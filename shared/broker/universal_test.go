package broker_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/google/uuid"
	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/broker/brokertest"
	"github.com/stretchr/testify/require"
)

// universal makes Watermill's constructors: each call has a connection of its own, as each replica has.
func universal(url string, sc broker.SubscriberConfig) tests.ConsumerGroupPubSubConstructor {
	return func(t *testing.T, group string) (message.Publisher, message.Subscriber) {
		conn := brokertest.ConnectURL(t, url)
		sc := sc
		sc.Group, sc.AutoCreate, sc.CloseTimeout = group, true, 2*time.Second
		sub, err := broker.NewSubscriber(conn, sc)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, sub.Close()) })
		return broker.NewPublisher(conn, broker.PublisherConfig{AutoCreate: true}), sub
	}
}

// withoutGroup gives every subscriber the same group: replicas of one consumer.
func withoutGroup(c tests.ConsumerGroupPubSubConstructor) tests.PubSubConstructor {
	return func(t *testing.T) (message.Publisher, message.Subscriber) { return c(t, "test") }
}

// TestUniversal is Watermill's own suite against a real server. Order is not claimed: several messages of a
// group are in flight at a time. Its TestReconnect is left out (no RestartServiceCommand): it reads the list
// of what it published while that is still being written, so it fails under -race always and without
// sometimes ("received: 10000, sent: 9999"), and leaks a goroutine. TestRestartUnderLoad does the same without.
func TestUniversal(t *testing.T) {
	t.Parallel()
	server := brokertest.StartProcess(t)
	constructor := universal(server.URL, broker.SubscriberConfig{})
	tests.TestPubSub(t, tests.Features{
		ConsumerGroups:      true,
		ExactlyOnceDelivery: false,
		GuaranteedOrder:     false,
		Persistent:          true,
	}, withoutGroup(constructor), constructor)
}

// TestUniversalInOrder claims what is true of one subscriber with one message in flight.
func TestUniversalInOrder(t *testing.T) {
	t.Parallel()
	server := brokertest.StartProcess(t)
	constructor := withoutGroup(universal(server.URL, broker.SubscriberConfig{MaxInFlight: 1}))
	features := tests.Features{GuaranteedOrder: true, GuaranteedOrderWithSingleSubscriber: true, Persistent: true}
	t.Run("order", func(t *testing.T) {
		t.Parallel()
		tests.TestPublishSubscribeInOrder(t, tests.TestContext{TestID: tests.TestID(uuid.NewString()), Features: features}, constructor)
	})
	t.Run("one at a time", func(t *testing.T) {
		t.Parallel()
		tests.TestNoAck(t, tests.TestContext{TestID: tests.TestID(uuid.NewString()), Features: features}, constructor)
	})
}
