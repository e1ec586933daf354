package outbox_test

import (
	"context"
	"testing"
	"time"

	"github.com/pillarbox/pillarbox/shared/broker/brokertest"
	"github.com/pillarbox/pillarbox/shared/events"
	"github.com/pillarbox/pillarbox/shared/logs"
	"github.com/pillarbox/pillarbox/shared/outbox"
	"github.com/stretchr/testify/require"
)

// A store of a release before replays registers and says nothing of the past: it is asked until one that knows them
// has taken its place, and nothing is taken for complete before.
func TestAStoreThatKnowsNoReplaysIsAskedAgain(t *testing.T) {
	t.Parallel()
	conn := brokertest.Connect(t, brokertest.Server(t))
	requests, err := conn.NATS.SubscribeSync("pillarbox.register.orders")
	require.NoError(t, err)
	r := outbox.NewRegistrar(conn, events.StreamOrders, "stock", logs.Discard())
	require.True(t, r.Complete(), "nothing was asked for")
	r.Ask(time.Unix(0, 0).UTC())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); r.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	r.Announce(ctx, "stock-1")
	const register = `{"name":"stock","durable":"stock-1","from":"1970-01-01T00:00:00Z"}`
	const look = `{"name":"stock","durable":"stock-1","from":"1970-01-01T00:00:00Z","look":true}`
	for _, want := range []string{register, look, register, look, register} {
		m, err := requests.NextMsg(patience)
		require.NoError(t, err)
		require.JSONEq(t, want, string(m.Data))
		require.False(t, r.Complete())
		require.NoError(t, m.Respond([]byte(`{"ok":true}`)))
	}
	m, err := requests.NextMsg(patience)
	require.NoError(t, err)
	require.JSONEq(t, look, string(m.Data))
	require.NoError(t, m.Respond([]byte(`{"ok":true,"replay":{"number":7,"state":"handled"}}`)))
	require.Eventually(t, r.Complete, patience, 5*time.Millisecond)
	r.Announce(ctx, "stock-2") // another stream: it must be asked anew
	require.False(t, r.Complete())
}

// The store says with each answer how far back it can publish again; one of before says nothing.
func TestTheStoreSaysItsHorizon(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b *bundle) {
		r := outbox.NewRegistrar(b.conn, events.StreamOrders, "stock", logs.Discard())
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); r.Run(ctx) }()
		defer func() { cancel(); <-ended }()
		_, known := r.Horizon()
		require.False(t, known)
		b.relay(options{config: outbox.Config{Horizon: 7 * time.Hour}})
		b.eventually(func() bool { h, known := r.Horizon(); return known && h == 7*time.Hour }, "asked though nothing was announced")
	})
}
