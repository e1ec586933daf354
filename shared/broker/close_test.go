package broker_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/broker/brokertest"
	"github.com/stretchr/testify/require"
)

// TestStopsUnderLoadLeaveNothingBehind: with an ack deadline of a minute, a message that a stop left to it
// would not come within the test's patience.
func TestStopsUnderLoadLeaveNothingBehind(t *testing.T) {
	t.Parallel()
	server := brokertest.Server(t)
	b := setupOn(t, brokertest.Connect(t, server))
	const rounds, perRound = 50, 200
	var load sync.WaitGroup
	load.Go(func() {
		for i := range rounds {
			b.publish(t, i*perRound, perRound)
		}
	})
	sc := broker.SubscriberConfig{Group: "g", MaxInFlight: 64, AckWait: time.Minute, CloseTimeout: 10 * time.Second}
	seen := map[string]int{}
	for round := range rounds {
		s, err := broker.NewSubscriber(b.conn, sc)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		ch, err := s.Subscribe(ctx, topic)
		require.NoError(t, err)
		n := 0
		// The stop comes from another goroutine, somewhere between two messages.
		var stopping sync.WaitGroup
		for m := range ch {
			if n++; n == 1+round*3 {
				stopping.Go(func() {
					if round%2 == 0 {
						cancel()
					} else {
						_ = s.Close()
					}
				})
			}
			seen[string(m.Payload)]++
			m.Ack()
			if len(seen) == rounds*perRound {
				cancel()
			}
		}
		stopping.Wait()
		cancel()
		require.NoError(t, s.Close())
		if len(seen) == rounds*perRound {
			break
		}
	}
	load.Wait()
	rest := subscribe(t, subscriber(t, b.conn, sc), topic)
	for len(seen) < rounds*perRound {
		m := receive(t, rest)
		seen[string(m.Payload)]++
		m.Ack()
	}
	for payload, times := range seen {
		require.Equal(t, 1, times, "message %s was handled and came again", payload)
	}
	require.Eventually(t, func() bool { return b.pending(t, "g-0") == 0 }, soon, tick)
}

func TestCloseWaitsForHandlers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.publish(t, 0, 10)
	s := subscriber(t, b.conn, broker.SubscriberConfig{AckWait: time.Minute, CloseTimeout: time.Minute})
	ctx, cancel := context.WithCancel(t.Context())
	ch, err := s.Subscribe(ctx, topic)
	require.NoError(t, err)
	m := receive(t, ch)
	require.Eventually(t, func() bool { return len(ch) == 9 }, soon, tick)
	cancel()
	// The buffer goes back at once, the handler keeps its message and its context.
	other := subscribe(t, subscriber(t, b.conn, broker.SubscriberConfig{AckWait: time.Minute}), topic)
	for range 9 {
		receive(t, other).Ack()
	}
	require.NoError(t, m.Context().Err())
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	select {
	case <-closed:
		require.Fail(t, "close did not wait for the handler")
	case <-time.After(200 * time.Millisecond):
	}
	require.NoError(t, m.Context().Err())
	m.Ack()
	require.NoError(t, <-closed)
	_, open := <-ch
	require.False(t, open)
	require.Eventually(t, func() bool { return b.pending(t, "g-0") == 0 }, soon, tick, "the ack was sent")
	none(t, other, 100*time.Millisecond)
}

func TestCloseDoesNotWaitForEver(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.publish(t, 0, 2)
	s := subscriber(t, b.conn, broker.SubscriberConfig{AckWait: time.Minute, CloseTimeout: 100 * time.Millisecond})
	ch := subscribe(t, s, topic)
	stuck := []*message.Message{receive(t, ch), receive(t, ch)}
	require.NoError(t, s.Close())
	for _, m := range stuck {
		require.Error(t, m.Context().Err())
	}
	// The rest was nacked: it comes to the next at once, and a late ack of the stuck one changes nothing.
	stuck[0].Ack()
	other := subscribe(t, subscriber(t, b.conn, broker.SubscriberConfig{AckWait: time.Minute}), topic)
	for range 2 {
		require.Equal(t, uint64(2), infoOf(t, receive(t, other)).Deliveries)
	}
	require.Equal(t, 2, b.pending(t, "g-0"))
}

func TestCloseWithoutConnection(t *testing.T) {
	t.Parallel()
	server := brokertest.StartProcess(t)
	b := setupOn(t, brokertest.ConnectURL(t, server.URL))
	b.publish(t, 0, 1)
	s := subscriber(t, b.conn, broker.SubscriberConfig{})
	ch := subscribe(t, s, topic)
	m := receive(t, ch)
	server.Kill()
	m.Ack()
	began := time.Now()
	require.NoError(t, s.Close())
	require.Less(t, time.Since(began), 5*time.Second)
	_, open := <-ch
	require.False(t, open)
}

func TestSubscribeWithEndedContext(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.publish(t, 0, 1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	ch, err := subscriber(t, b.conn, broker.SubscriberConfig{}).Subscribe(ctx, topic)
	require.NoError(t, err)
	_, open := <-ch
	require.False(t, open)
}
