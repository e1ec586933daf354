package broker_test

import (
	"testing"
	"time"

	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/stretchr/testify/require"
)

func TestConfirm(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.publish(t, 0, 3)
	sc := broker.SubscriberConfig{AckWait: 2 * time.Second}
	ch := subscribe(t, subscriber(t, b.conn, sc), topic)
	for range 3 {
		require.NoError(t, broker.Confirm(t.Context(), receive(t, ch)))
	}
	require.Zero(t, b.pending(t, "g-0"), "the broker knew of each when Confirm returned")
	none(t, ch, 50*time.Millisecond)
	require.NoError(t, broker.Confirm(t.Context(), newMessage("of another kind")))
}

// TestConfirmAfterTheDeadline: the broker may have given the message to another replica, so nobody is told that it is ours.
func TestConfirmAfterTheDeadline(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.publish(t, 0, 1)
	const wait = 2 * time.Second // a pull may stand for a second of it
	ch := subscribe(t, subscriber(t, b.conn, broker.SubscriberConfig{AckWait: wait}), topic)
	m := receive(t, ch)
	none(t, ch, wait+200*time.Millisecond) // the broker is told of work under way, which it does not answer
	require.ErrorIs(t, broker.Confirm(t.Context(), m), broker.ErrNotOurs)
	m.Nack()
	again := receive(t, ch)
	require.NoError(t, broker.Confirm(t.Context(), again), "it was not taken from whoever has it now")
}

func TestConfirmWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.publish(t, 0, 1)
	ch := subscribe(t, subscriber(t, b.conn, broker.SubscriberConfig{}), topic)
	m := receive(t, ch)
	b.conn.NATS.Close()
	require.Error(t, broker.Confirm(t.Context(), m))
}
