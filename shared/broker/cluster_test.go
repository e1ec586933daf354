package broker_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/broker/brokertest"
	"github.com/stretchr/testify/require"
)

// setupCluster returns a stream of three replicas and a connection to each node.
func setupCluster(t *testing.T) (conns []*broker.Conn, stop []func()) {
	t.Helper()
	for _, s := range brokertest.Cluster(t) {
		conns = append(conns, brokertest.ConnectURL(t, s.ClientURL()))
		stop = append(stop, func() { s.Shutdown(); s.WaitForShutdown() })
	}
	require.Eventually(t, func() bool { // until the group of servers has its leader
		_, err := conns[0].EnsureStream(t.Context(), broker.StreamConfig{Name: stream, Replicas: 3})
		return err == nil
	}, 30*time.Second, 50*time.Millisecond)
	return conns, stop
}

// TestClusterStopsLeaveNothingBehind is TestStopsUnderLoadLeaveNothingBehind where messages cross servers. A
// trickle, so that at the stop a pull request stands, which the next message answers.
func TestClusterStopsLeaveNothingBehind(t *testing.T) {
	t.Parallel()
	conns, _ := setupCluster(t)
	const rounds = 12
	var load sync.WaitGroup
	var published atomic.Int64
	enough := make(chan struct{})
	for g := range 6 {
		pub := broker.NewPublisher(conns[g%len(conns)], broker.PublisherConfig{Timeout: soon})
		load.Go(func() {
			for {
				select {
				case <-enough:
					return
				default:
					if pub.Publish(topic, newMessage("x")) == nil {
						published.Add(1)
					}
				}
			}
		})
	}
	seen := map[string]int{}
	take := func(m *message.Message) {
		seen[m.UUID]++
		m.Ack()
	}
	sc := broker.SubscriberConfig{Group: "g", MaxInFlight: 32, AckWait: time.Minute, CloseTimeout: 10 * time.Second}
	for round := range rounds {
		s, err := broker.NewSubscriber(conns[round%len(conns)], sc)
		require.NoError(t, err)
		ch := subscribe(t, s, topic)
		var stopping sync.WaitGroup
		n := 0
		for m := range ch {
			if n++; n == 100+round {
				stopping.Go(func() { _ = s.Close() })
			}
			take(m)
		}
		stopping.Wait()
	}
	close(enough)
	load.Wait()
	rest := subscribe(t, subscriber(t, conns[1], sc), topic)
	for int64(len(seen)) < published.Load() {
		take(receive(t, rest))
	}
	for id, times := range seen {
		require.Equal(t, 1, times, "message %s was handled and came again", id)
	}
}

// TestClusterLosesOneNode: publisher and subscribers go on when the server that they talk to goes away.
func TestClusterLosesOneNode(t *testing.T) {
	t.Parallel()
	conns, stop := setupCluster(t)
	pub := broker.NewPublisher(conns[0], broker.PublisherConfig{})
	ch := []<-chan *message.Message{
		subscribe(t, subscriber(t, conns[0], broker.SubscriberConfig{AckWait: time.Second}), topic),
		subscribe(t, subscriber(t, conns[1], broker.SubscriberConfig{AckWait: time.Second}), topic),
	}
	const total = 300
	var publishing sync.WaitGroup
	publishing.Go(func() {
		for i := range total {
			if i == total/3 {
				stop[0]()
			}
			m := newMessage(string(rune('0' + i)))
			for pub.Publish(topic, m) != nil && t.Context().Err() == nil {
				<-time.After(tick)
			}
		}
	})
	seen := map[string]bool{}
	for len(seen) < total {
		var m *message.Message
		select {
		case m = <-ch[0]:
		case m = <-ch[1]:
		case <-time.After(30 * time.Second):
			require.Fail(t, "messages are missing", "%d of %d came", len(seen), total)
		}
		seen[string(m.Payload)] = true
		m.Ack()
	}
	publishing.Wait()
}
