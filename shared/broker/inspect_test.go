package broker_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/broker/brokertest"
	"github.com/stretchr/testify/require"
)

// peek returns the data of what Peek hands out.
func peek(t testing.TB, c *broker.Conn, topics []string, from uint64, n int) (data []string) {
	t.Helper()
	require.NoError(t, c.Peek(t.Context(), stream, topics, from, n, func(m broker.Stored) error {
		data = append(data, string(m.Data))
		return nil
	}))
	return data
}

// fill makes the stream and stores one message with each of the data, on topic or, for data that begin with "x", on
// another subject of the stream.
func fill(t testing.TB, c *broker.Conn, data ...string) {
	t.Helper()
	_, err := c.EnsureStream(t.Context(), broker.StreamConfig{Name: stream, Generation: 1})
	require.NoError(t, err)
	for _, d := range data {
		subject := topic
		if d[0] == 'x' {
			subject = stream + ".other"
		}
		_, err := c.JS.Publish(t.Context(), subject, []byte(d))
		require.NoError(t, err)
	}
}

func TestQueuesAndTheirFigures(t *testing.T) {
	t.Parallel()
	c := brokertest.Connect(t, brokertest.Server(t))
	none, err := c.Queues(t.Context())
	require.NoError(t, err)
	require.Empty(t, none)
	_, err = c.Queue(t.Context(), stream)
	require.ErrorIs(t, err, broker.ErrNoStream)

	fill(t, c, "a", "x1", "b")
	_, err = c.EnsureStream(t.Context(), broker.StreamConfig{Name: "another"})
	require.NoError(t, err)
	made, err := c.EnsureConsumer(t.Context(), stream, "watch", []string{topic})
	require.NoError(t, err)
	r := c.NewReceiver(made)
	first, err := r.Next(t.Context())
	require.NoError(t, err)
	require.NoError(t, first.Ack(t.Context()))
	second, err := r.Next(t.Context())
	require.NoError(t, err)
	require.NoError(t, second.Nack())
	second, err = r.Next(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 2, second.Deliveries)
	r.Close()
	fill(t, c, "c")

	all, err := c.Queues(t.Context())
	require.NoError(t, err)
	require.Len(t, all, 2)
	require.Equal(t, "another", all[0].Name)
	one, err := c.Queue(t.Context(), stream)
	require.NoError(t, err)
	require.Equal(t, all[1].Subjects, one.Subjects)
	require.EqualValues(t, 4, one.Messages)
	require.Len(t, one.Consumers, 1)
	w := one.Consumers[0]
	require.Equal(t, "watch-1", w.Durable)
	require.Equal(t, "watch", w.Group)
	require.True(t, w.Tool)
	require.Equal(t, []string{topic}, w.Topics)
	require.EqualValues(t, 1, w.Depth)
	require.Equal(t, 1, w.InFlight)
	require.Equal(t, 1, w.Redelivered)
	require.EqualValues(t, 1, w.AckFloor)
	require.False(t, w.Idle())

	at, found, err := c.Oldest(t.Context(), w)
	require.NoError(t, err)
	require.True(t, found)
	require.Equal(t, second.StoredAt, at, "the oldest that is not acknowledged is the third of the stream")
}

func TestPeekLeavesEverythingWhereItIs(t *testing.T) {
	t.Parallel()
	c := brokertest.Connect(t, brokertest.Server(t))
	fill(t, c, "a", "x1", "b", "x2", "c")
	made, err := c.EnsureConsumer(t.Context(), stream, "watch", nil)
	require.NoError(t, err)
	require.Equal(t, []string{"a", "x1", "b", "x2", "c"}, peek(t, c, nil, 0, 10))
	require.Equal(t, []string{"x1", "b"}, peek(t, c, nil, 2, 2))
	require.Equal(t, []string{"b", "c"}, peek(t, c, []string{topic}, 2, 10))
	require.Equal(t, []string{"x1", "b", "x2"}, peek(t, c, []string{topic, stream + ".other"}, 2, 3))
	require.Empty(t, peek(t, c, nil, 6, 1))
	after, err := c.Queue(t.Context(), stream)
	require.NoError(t, err)
	require.Equal(t, []broker.ConsumerInfo{made}, after.Consumers)
	require.ErrorIs(t, c.Peek(t.Context(), "nowhere", nil, 1, 1, nil), broker.ErrNoStream)

	failed := fmt.Errorf("full disk")
	require.ErrorIs(t, c.Peek(t.Context(), stream, nil, 1, 5, func(broker.Stored) error { return failed }), failed)
}

func TestPurgeAndRemove(t *testing.T) {
	t.Parallel()
	c := brokertest.Connect(t, brokertest.Server(t))
	fill(t, c, "a", "b", "c")
	for _, step := range []struct{ before, gone, left uint64 }{{0, 0, 3}, {1, 0, 3}, {3, 2, 1}, {99, 1, 0}, {99, 0, 0}} {
		gone, err := c.Purge(t.Context(), stream, step.before)
		require.NoError(t, err)
		require.Equal(t, step.gone, gone, "before %d", step.before)
		q, err := c.Queue(t.Context(), stream)
		require.NoError(t, err)
		require.Equal(t, step.left, q.Messages)
		require.EqualValues(t, 3, q.LastSeq, "the next message's sequence stays")
	}
	made, err := c.EnsureConsumer(t.Context(), stream, "watch", nil)
	require.NoError(t, err)
	require.NoError(t, c.RemoveConsumer(t.Context(), stream, made.Durable))
	require.ErrorIs(t, c.RemoveConsumer(t.Context(), stream, made.Durable), broker.ErrNoConsumer)
	require.NoError(t, c.RemoveQueue(t.Context(), stream))
	require.ErrorIs(t, c.RemoveQueue(t.Context(), stream), broker.ErrNoStream)
}

// A pause holds back a subscriber that reads already, outlives its restart, and does not make it build its session
// anew; it goes on when the pause ends.
func TestPause(t *testing.T) {
	t.Parallel()
	c := brokertest.Connect(t, brokertest.Server(t))
	fill(t, c, "a")
	s := subscriber(t, c, broker.SubscriberConfig{Group: "watch"})
	ch := subscribe(t, s, topic)
	require.True(t, receive(t, ch).Ack())
	require.NoError(t, c.Pause(t.Context(), stream, "watch-1", time.Now().Add(time.Hour)))
	fill(t, c, "b")
	require.NoError(t, s.Close())

	var announced int
	s = subscriber(t, c, broker.SubscriberConfig{Group: "watch", OnDurable: func(context.Context, string) { announced++ }})
	ch = subscribe(t, s, topic)
	none(t, ch, 4*time.Second) // longer than an unanswered pull may stand
	q, err := c.Queue(t.Context(), stream)
	require.NoError(t, err)
	require.False(t, q.Consumers[0].PausedUntil.IsZero())
	require.NoError(t, c.Resume(t.Context(), stream, "watch-1"))
	m := receive(t, ch)
	require.Equal(t, "b", string(m.Payload))
	require.True(t, m.Ack())
	require.NoError(t, s.Close())
	require.Equal(t, 1, announced)
	require.ErrorIs(t, c.Pause(t.Context(), stream, "nobody-1", time.Now().Add(time.Hour)), broker.ErrNoConsumer)
	require.ErrorIs(t, c.Resume(t.Context(), stream, "nobody-1"), broker.ErrNoConsumer)
}

func TestReceiverWaits(t *testing.T) {
	t.Parallel()
	c := brokertest.Connect(t, brokertest.Server(t))
	fill(t, c)
	made, err := c.EnsureConsumer(t.Context(), stream, "watch", nil)
	require.NoError(t, err)
	again, err := c.EnsureConsumer(t.Context(), stream, "watch", []string{"ignored"})
	require.NoError(t, err)
	require.Equal(t, made, again)
	r := c.NewReceiver(made)

	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = r.Next(short)
	require.ErrorIs(t, err, context.DeadlineExceeded)

	fill(t, c, "late") // arrives at a request that nobody waits for
	r.Close()
	m, err := r.Next(t.Context())
	require.NoError(t, err)
	require.Equal(t, "late", string(m.Data))
	require.NoError(t, m.Ack(t.Context()))
	r.Close()
	q, err := c.Queue(t.Context(), stream)
	require.NoError(t, err)
	require.True(t, q.Consumers[0].Idle(), "nothing was left to the ack deadline: %+v", q.Consumers[0])

	gone := c.NewReceiver(made)
	require.NoError(t, c.RemoveConsumer(t.Context(), stream, made.Durable))
	_, err = gone.Next(t.Context())
	require.ErrorIs(t, err, broker.ErrNoConsumer)
	gone.Close()
}

func TestReceiverOutlivesTheServer(t *testing.T) {
	t.Parallel()
	p := brokertest.StartProcess(t)
	c := brokertest.ConnectURL(t, p.URL)
	fill(t, c, "a")
	made, err := c.EnsureConsumer(t.Context(), stream, "watch", nil)
	require.NoError(t, err)
	r := c.NewReceiver(made)
	defer r.Close()
	m, err := r.Next(t.Context())
	require.NoError(t, err)
	require.NoError(t, m.Ack(t.Context()))
	lost := make(chan error, 1)
	go func() {
		_, err := r.Next(t.Context())
		lost <- err
	}()
	p.Stop() // after a kill, what was acknowledged just before may come again
	require.ErrorIs(t, <-lost, broker.ErrDisconnected)
	p.Start()
	require.Eventually(t, c.NATS.IsConnected, soon, tick)
	fill(t, c, "b")
	m, err = r.Next(t.Context())
	require.NoError(t, err)
	require.Equal(t, "b", string(m.Data))
	require.NoError(t, m.Ack(t.Context()))
}
