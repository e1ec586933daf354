package broker_test

import (
	"sync"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/broker/brokertest"
	"github.com/stretchr/testify/require"
)

func TestEnsureStreamCreates(t *testing.T) {
	t.Parallel()
	conn := brokertest.Connect(t, brokertest.Server(t))
	_, err := conn.Stream(t.Context(), stream)
	require.ErrorIs(t, err, broker.ErrNoStream)
	st := ensure(t, conn, broker.StreamConfig{Name: stream, FirstSeq: 1_000_001, Generation: 2})
	require.Equal(t, uint64(1_000_001), st.FirstSeq)
	require.Equal(t, uint64(1_000_000), st.LastSeq)
	require.Equal(t, int64(2), st.Generation)
	require.Zero(t, st.Messages)

	s, err := conn.JS.Stream(t.Context(), stream)
	require.NoError(t, err)
	info := s.CachedInfo()
	require.True(t, info.Created.Equal(st.Created), "exactly as the server says")
	c := info.Config
	require.Equal(t, []string{stream, stream + ".>"}, c.Subjects)
	require.Equal(t, jetstream.LimitsPolicy, c.Retention)
	require.Equal(t, jetstream.DiscardNew, c.Discard)
	require.Equal(t, jetstream.FileStorage, c.Storage)
	require.Equal(t, int64(1<<30), c.MaxBytes)
	require.Zero(t, c.MaxAge)
	require.True(t, c.AllowAtomicPublish)

	b := setupOn(t, conn)
	r, err := b.pub.PublishOne(t.Context(), topic, newMessage("x"))
	require.NoError(t, err)
	require.Equal(t, uint64(1_000_001), r.Sequence)
}

func TestEnsureStreamUpdatesWithoutLosing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.publish(t, 0, 100)
	before := ensure(t, b.conn, broker.StreamConfig{Name: stream, Generation: 3})
	// Somebody's hand: what we insist on is mended, what we do not know stays.
	s, err := b.conn.JS.Stream(t.Context(), stream)
	require.NoError(t, err)
	c := s.CachedInfo().Config
	c.Discard, c.AllowAtomicPublish, c.Description = jetstream.DiscardOld, false, "by hand"
	_, err = b.conn.JS.UpdateStream(t.Context(), c)
	require.NoError(t, err)

	after := ensure(t, b.conn, broker.StreamConfig{Name: stream, MaxBytes: 1000, FirstSeq: 77, Generation: 1})
	require.Equal(t, before, after, "nothing is lost, the generation never falls, a first sequence is for new streams")
	s, err = b.conn.JS.Stream(t.Context(), stream)
	require.NoError(t, err)
	c = s.CachedInfo().Config
	require.Equal(t, jetstream.DiscardNew, c.Discard)
	require.True(t, c.AllowAtomicPublish)
	require.Equal(t, "by hand", c.Description)
	require.Equal(t, int64(1000), c.MaxBytes)
	requireOutcome(t, broker.ErrFull, b.pub.Publish(topic, newMessage("x")))
}

func TestEnsureStreamManyAtOnce(t *testing.T) {
	t.Parallel()
	server := brokertest.Server(t)
	var all sync.WaitGroup
	states := make([]broker.StreamState, 10)
	errs := make([]error, 10)
	for i := range states {
		conn := brokertest.Connect(t, server)
		all.Go(func() {
			states[i], errs[i] = conn.EnsureStream(t.Context(), broker.StreamConfig{Name: stream, Generation: int64(i)})
		})
	}
	all.Wait()
	conn := brokertest.Connect(t, server)
	st, err := conn.Stream(t.Context(), stream)
	require.NoError(t, err)
	for i := range states {
		require.NoError(t, errs[i])
		require.Equal(t, st.Created, states[i].Created)
	}
	require.Equal(t, int64(9), ensure(t, conn, broker.StreamConfig{Name: stream, Generation: 9}).Generation)
}

func TestStreamSurvivesKill(t *testing.T) {
	t.Parallel()
	server := brokertest.StartProcess(t)
	b := setupOn(t, brokertest.ConnectURL(t, server.URL))
	b.publish(t, 0, 10)
	before, err := b.conn.Stream(t.Context(), stream)
	require.NoError(t, err)
	server.Restart()
	require.Eventually(t, func() bool {
		after, err := b.conn.Stream(t.Context(), stream)
		return err == nil && after == before
	}, soon, tick)
	server.Wipe()
	server.Start()
	require.Eventually(t, func() bool { return b.conn.Ready(t.Context()) == nil }, soon, tick)
	_, err = b.conn.Stream(t.Context(), stream)
	require.ErrorIs(t, err, broker.ErrNoStream)
	require.NotEqual(t, before.Created, ensure(t, b.conn, broker.StreamConfig{Name: stream}).Created)
}
