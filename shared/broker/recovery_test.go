package broker_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/broker/brokertest"
	"github.com/pillarbox/pillarbox/shared/logs"
	"github.com/stretchr/testify/require"
)

func TestSubscriberWaitsForServerAndStream(t *testing.T) {
	t.Parallel()
	server := brokertest.StartProcess(t)
	server.Stop()
	conn, err := broker.Connect(broker.Config{URL: server.URL}, logs.Discard())
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	ch := subscribe(t, subscriber(t, conn, broker.SubscriberConfig{}), topic)
	none(t, ch, 100*time.Millisecond)
	server.Start()
	require.Eventually(t, conn.NATS.IsConnected, soon, tick)
	none(t, ch, 300*time.Millisecond)
	b := setupOn(t, conn)
	b.publish(t, 0, 1)
	receive(t, ch).Ack()
}

// lines counts log lines by message.
type lines struct {
	mu    sync.Mutex // guards count
	count map[string]int
}

func (l *lines) Enabled(context.Context, slog.Level) bool { return true }
func (l *lines) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l *lines) WithGroup(string) slog.Handler            { return l }
func (l *lines) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count[r.Message]++
	return nil
}

func (l *lines) of(message string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count[message]
}

func TestWaitingIsLoggedOnceInAWhile(t *testing.T) {
	t.Parallel()
	server := brokertest.Server(t)
	log := &lines{count: map[string]int{}}
	conn, err := broker.Connect(broker.Config{Server: server, Token: server.Token()}, slog.New(log))
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	ch := subscribe(t, subscriber(t, conn, broker.SubscriberConfig{}), topic)
	const waiting, works = "subscription is waiting", "subscription works again"
	none(t, ch, 500*time.Millisecond)
	require.Zero(t, log.of(waiting), "services that start together wait for a moment")
	require.Eventually(t, func() bool { return log.of(waiting) == 1 }, soon, tick)
	none(t, ch, 3*time.Second)
	require.Equal(t, 1, log.of(waiting))
	ensure(t, conn, broker.StreamConfig{Name: stream})
	require.Eventually(t, func() bool { return log.of(works) == 1 }, soon, tick)
}

func TestStreamMadeAnewWhileSubscribed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	durables := make(chan string, 10)
	sc := broker.SubscriberConfig{AckWait: time.Minute, OnDurable: func(_ context.Context, name string) { durables <- name }}
	s := subscriber(t, b.conn, sc)
	ch := subscribe(t, s, topic)
	b.publish(t, 0, 1)
	old := receive(t, ch)
	// The message is from a session before the last.
	s.Pause()
	b.publish(t, 1, 1)
	none(t, ch, 300*time.Millisecond)
	s.Resume()
	receive(t, ch).Ack()
	require.NoError(t, b.conn.JS.DeleteStream(t.Context(), stream))
	none(t, ch, 300*time.Millisecond)
	ensure(t, b.conn, broker.StreamConfig{Name: stream})
	b.publish(t, 2, 1)
	fresh := receive(t, ch)
	require.Equal(t, "2", string(fresh.Payload))
	require.Equal(t, infoOf(t, old).Sequence, infoOf(t, fresh).Sequence, "the sequence is used twice")
	require.Equal(t, "g-0", <-durables)
	require.Equal(t, "g-0", <-durables, "the durable was found anew")
	// An ack from the old stream's days does not count for the new message.
	old.Ack()
	<-old.Context().Done()
	require.NoError(t, b.conn.NATS.Flush())
	require.Equal(t, 1, b.pending(t, "g-0"))
	fresh.Ack()
	require.Eventually(t, func() bool { return b.pending(t, "g-0") == 0 }, soon, tick)
}

func TestDurableRemovedWhileSubscribed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ch := subscribe(t, subscriber(t, b.conn, broker.SubscriberConfig{}), topic)
	b.publish(t, 0, 1)
	receive(t, ch).Ack()
	require.NoError(t, b.conn.JS.DeleteConsumer(t.Context(), stream, "g-0"))
	require.Equal(t, "0", string(receive(t, ch).Payload), "a new durable begins at the start")
}

func TestGenerationRisesWhileSubscribed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	durables := make(chan string, 10)
	sc := broker.SubscriberConfig{AckWait: time.Minute, OnDurable: func(_ context.Context, name string) { durables <- name }}
	ch := subscribe(t, subscriber(t, b.conn, sc), topic)
	b.publish(t, 0, 2)
	frozen := []*message.Message{receive(t, ch), receive(t, ch)}
	require.Equal(t, "g-0", <-durables)
	frozen[0].Ack()

	ensure(t, b.conn, broker.StreamConfig{Name: stream, Generation: 1})
	require.Equal(t, "g-1", <-durables)
	fresh := []*message.Message{receive(t, ch), receive(t, ch)}
	require.Equal(t, "0", string(fresh[0].Payload))
	require.Equal(t, 2, b.pending(t, "g-1"))
	// The late word of the old generation, whatever it is, settles nothing of the new one.
	frozen[1].Nack()
	<-frozen[1].Context().Done()
	info := infoOf(t, frozen[0])
	require.NoError(t, b.conn.NATS.Publish(fmt.Sprintf("$JS.ACK.%s.g-0.1.%d.%d.%d.0", stream, info.Sequence, info.Sequence,
		info.StoredAt.UnixNano()), []byte("+ACK")))
	require.NoError(t, b.conn.NATS.Flush())
	require.Equal(t, 2, b.pending(t, "g-1"))
	require.Empty(t, ch)
	fresh[0].Ack()
	fresh[1].Ack()
	require.Eventually(t, func() bool { return b.pending(t, "g-1") == 0 }, soon, tick)
	// The old durable goes: nobody can read it by mistake.
	require.Eventually(t, func() bool {
		_, err := b.conn.JS.Consumer(t.Context(), stream, "g-0")
		return err != nil
	}, soon, tick)
}

// Groups whose names look like another's durables keep theirs.
func TestGenerationLeavesOtherGroupsAlone(t *testing.T) {
	t.Parallel()
	b := setup(t)
	other := subscriber(t, b.conn, broker.SubscriberConfig{Group: "g-0"})
	b.publish(t, 0, 1)
	receive(t, subscribe(t, other, topic)).Ack()
	require.NoError(t, other.Close()) // it never moves to the next generation
	ch := subscribe(t, subscriber(t, b.conn, broker.SubscriberConfig{}), topic)
	receive(t, ch).Ack()
	ensure(t, b.conn, broker.StreamConfig{Name: stream, Generation: 5})
	receive(t, ch).Ack()
	_, err := b.conn.JS.Consumer(t.Context(), stream, "g-0-0")
	require.NoError(t, err)
}

func TestServerKilledWhileSubscribed(t *testing.T) {
	t.Parallel()
	server := brokertest.StartProcess(t)
	b := setupOn(t, brokertest.ConnectURL(t, server.URL))
	ch := subscribe(t, subscriber(t, b.conn, broker.SubscriberConfig{AckWait: time.Second}), topic)
	b.publish(t, 0, 50)
	seen := map[string]bool{}
	take := func(n int) {
		for len(seen) < n {
			m := receive(t, ch)
			seen[string(m.Payload)] = true
			m.Ack()
		}
	}
	take(20)
	server.Restart()
	take(50)
	require.Eventually(t, b.conn.NATS.IsConnected, soon, tick)
	b.publish(t, 50, 50)
	take(100)
	b.settle(t, ch)
}

// settle acks what comes (a crash of the server loses acks, so messages come again) until nothing is pending.
func (b *bundle) settle(t *testing.T, replicas ...<-chan *message.Message) {
	t.Helper()
	require.Eventually(t, func() bool {
		for _, ch := range replicas {
			for len(ch) > 0 {
				(<-ch).Ack()
			}
		}
		return b.pending(t, "g-0") == 0
	}, soon, tick)
}

func TestServerFrozenWhileSubscribed(t *testing.T) {
	t.Parallel()
	server := brokertest.StartProcess(t)
	b := setupOn(t, brokertest.ConnectURL(t, server.URL))
	ch := subscribe(t, subscriber(t, b.conn, broker.SubscriberConfig{AckWait: time.Second}), topic)
	b.publish(t, 0, 1)
	receive(t, ch).Ack()
	server.Freeze()
	none(t, ch, 5*time.Second) // longer than a pull request waits for its answer
	server.Thaw()
	require.Eventually(t, func() bool { return b.conn.Ready(t.Context()) == nil }, soon, tick)
	b.publish(t, 1, 1)
	m := receive(t, ch)
	require.Equal(t, "1", string(m.Payload))
	m.Ack()
}

// TestRestartUnderLoad is what Watermill's TestReconnect is about: many publishers that try until they
// are confirmed, and a server that is killed twice meanwhile.
func TestRestartUnderLoad(t *testing.T) {
	t.Parallel()
	const publishers, restarts = 20, 2
	total := 10_000
	if testing.Short() {
		total = 2000
	}
	server := brokertest.StartProcess(t)
	b := setupOn(t, brokertest.ConnectURL(t, server.URL))
	todo := make(chan int)
	var all sync.WaitGroup
	for range publishers {
		all.Go(func() {
			for i := range todo {
				m := newMessage(fmt.Sprint(i))
				for b.pub.Publish(topic, m) != nil {
					if t.Context().Err() != nil {
						return
					}
					<-time.After(tick)
				}
			}
		})
	}
	all.Go(func() {
		defer close(todo)
		for i := range total {
			if i > 0 && i%(total/(restarts+1)) == 0 && i/(total/(restarts+1)) <= restarts {
				server.Restart()
			}
			todo <- i
		}
	})
	replicas := []<-chan *message.Message{}
	for range 2 {
		conn := brokertest.ConnectURL(t, server.URL)
		replicas = append(replicas, subscribe(t, subscriber(t, conn, broker.SubscriberConfig{}), topic))
	}
	seen := map[string]bool{}
	for len(seen) < total {
		var m *message.Message
		select {
		case m = <-replicas[0]:
		case m = <-replicas[1]:
		case <-time.After(30 * time.Second):
			require.Fail(t, "messages are missing", "%d of %d came", len(seen), total)
		}
		seen[string(m.Payload)] = true
		m.Ack()
	}
	all.Wait()
	require.Equal(t, uint64(total), b.messages(t), "publishes that were repeated are stored once")
	b.settle(t, replicas...)
}
