package broker_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/broker/brokertest"
)

// TestWorking: a subscriber says that it brings nothing before its stream is there, and while the
// server is away; and that it works again.
func TestWorking(t *testing.T) {
	t.Parallel()
	server := brokertest.StartProcess(t)
	conn := brokertest.ConnectURL(t, server.URL)
	s := subscriber(t, conn, broker.SubscriberConfig{Group: "g"})
	require.ErrorContains(t, s.Working(), "not subscribed yet")
	ch := subscribe(t, s, topic)
	require.Eventually(t, func() bool { return s.Working() != nil && s.Working().Error() == "no such stream: orders" }, soon, tick)
	b := setupOn(t, conn)
	require.Eventually(t, func() bool { return s.Working() == nil }, soon, tick)
	b.publish(t, 0, 1)
	receive(t, ch).Ack()
	require.NoError(t, s.Working())
	s.Pause()
	require.NoError(t, s.Working())
	s.Resume()

	server.Stop()
	require.Eventually(t, func() bool { return errors.Is(s.Working(), broker.ErrDisconnected) }, soon, tick)
	server.Start()
	require.Eventually(t, func() bool { return s.Working() == nil }, soon, tick)
	require.NoError(t, s.Close())
	require.Error(t, s.Working())
}
