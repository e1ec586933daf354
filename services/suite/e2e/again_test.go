package e2e_test

import (
	"maps"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/shared/events"
)

// TestTheWholeStreamThreeTimesMore delivers every event again and again: durables are removed while their consumers
// run, and while they are stopped, and the stream gets a new generation. No service takes a second effect.
func TestTheWholeStreamThreeTimesMore(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1)
	b := begin(t, c.Line())
	b.trade(t, 40)
	b.conserved(t)
	js := dialer(t, c, "operator")().JS
	stream, err := js.Stream(t.Context(), events.StreamOrders)
	require.NoError(t, err)
	remove := func() {
		for _, name := range durableNames(t, stream) {
			require.NoError(t, stream.DeleteConsumer(t.Context(), name))
		}
	}
	consumers := append(append(c.Services["mailer"], c.Services["audit"]...), c.Services["loyalty"]...)
	for _, round := range []struct {
		name  string
		again func()
	}{
		{"durables removed", remove},
		{"durables removed while nobody runs", func() {
			for _, p := range consumers {
				require.NoError(t, p.Stop())
			}
			remove()
			for _, p := range consumers {
				require.NoError(t, p.Run(t.Context()))
			}
		}},
		{"new generation", func() {
			config := stream.CachedInfo().Config
			config.Metadata = maps.Clone(config.Metadata)
			generation, err := strconv.Atoi(config.Metadata["pillarbox-generation"])
			require.NoError(t, err)
			config.Metadata["pillarbox-generation"] = strconv.Itoa(generation + 1)
			_, err = js.UpdateStream(t.Context(), config)
			require.NoError(t, err)
		}},
	} {
		begun := time.Now() // the broker shares this machine's clock
		round.again()
		require.Eventually(t, func() bool { return deliveredSince(t, stream, begun) }, deadline, 20*time.Millisecond,
			"%s: the stream is not delivered again", round.name)
		b.trade(t, 5)
		b.conserved(t)
	}
	nothingDead(t, c)
}

func durableNames(t *testing.T, stream jetstream.Stream) (names []string) {
	t.Helper()
	list := stream.ConsumerNames(t.Context())
	for name := range list.Name() {
		names = append(names, name)
	}
	require.NoError(t, list.Err())
	require.NotEmpty(t, names)
	return names
}

// deliveredSince reports whether three durables were made since then, and have delivered the whole stream.
func deliveredSince(t *testing.T, stream jetstream.Stream, then time.Time) bool {
	t.Helper()
	info, err := stream.Info(t.Context())
	require.NoError(t, err)
	require.Greater(t, info.State.Msgs, uint64(40), "there is not much to deliver")
	list, whole := stream.ListConsumers(t.Context()), 0
	for durable := range list.Info() {
		if durable.Created.After(then) && durable.NumPending == 0 && durable.NumAckPending == 0 && durable.Delivered.Consumer >= info.State.Msgs {
			whole++
		}
	}
	require.NoError(t, list.Err())
	return whole == 3
}
