package broker_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/stretchr/testify/require"
)

func numbered(from, n, size int) (out []*message.Message) {
	for i := from; i < from+n; i++ {
		m := newMessage(fmt.Sprint(i) + strings.Repeat(" ", size))
		m.Metadata.Set(broker.MetaPublishID, fmt.Sprint("id-", i))
		out = append(out, m)
	}
	return out
}

func TestPublishAll(t *testing.T) {
	t.Parallel()
	b := setup(t)
	last := func() uint64 {
		st, err := b.conn.Stream(t.Context(), stream)
		require.NoError(t, err)
		return st.LastSeq
	}
	require.NoError(t, b.pub.PublishAll(t.Context(), topic, nil))
	require.NoError(t, b.pub.PublishAll(t.Context(), topic, numbered(0, 3, 0)))
	require.EqualValues(t, 3, last())
	// Each part has what is there already, in a batch and one by one.
	require.NoError(t, b.pub.PublishAll(t.Context(), topic, numbered(2, 2, 0)))
	require.EqualValues(t, 4, last())
	require.NoError(t, b.pub.PublishAll(t.Context(), topic, numbered(3, 20, 0)))
	require.EqualValues(t, 23, last())
	// More than a batch takes, in number and in bytes.
	require.NoError(t, b.pub.PublishAll(t.Context(), topic, numbered(23, 1500, 0)))
	require.NoError(t, b.pub.PublishAll(t.Context(), topic, numbered(1523, 24, 500_000)))
	require.EqualValues(t, 1547, last())
	require.ErrorIs(t, b.pub.PublishAll(t.Context(), topic, numbered(1547, 1, 2<<20)), broker.ErrRefused)
	require.ErrorIs(t, b.pub.PublishAll(t.Context(), topic, append(numbered(1548, 20, 0), numbered(1600, 1, 2<<20)...)), broker.ErrRefused)
	ch := subscribe(t, subscriber(t, b.conn, broker.SubscriberConfig{}), topic)
	for i := range 1547 {
		m := receive(t, ch)
		require.Equal(t, fmt.Sprint(i), strings.TrimSpace(string(m.Payload)), "in order")
		m.Ack()
	}
}
