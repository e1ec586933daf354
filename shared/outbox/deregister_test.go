package outbox_test

import (
	"context"
	"testing"
	"time"

	"github.com/pillarbox/pillarbox/shared/events"
	"github.com/pillarbox/pillarbox/shared/outbox"
	"github.com/stretchr/testify/require"
)

// A consumer that is gone for good stops the purge until it is deregistered.
func TestDeregister(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b *bundle) {
		_, err := outbox.Deregister(t.Context(), b.conn, events.StreamOrders, "mailer")
		require.ErrorIs(t, err, outbox.ErrNoStore)

		r := b.relay(options{purgeEvery: often})
		b.register("mailer")
		b.register("gone")
		var rows []outbox.Row
		for v := int64(1); v <= 10; v++ {
			rows = append(rows, row("order", v, 100))
		}
		b.commit(rows...)
		r.Wake()
		b.drained()
		b.acknowledge(b.durable("mailer"), 10)
		b.age()
		b.eventually(func() bool { return r.metric(t, "relay_purge_blocked") == 1 }, "the missing durable does not stop the purge")

		for _, was := range []bool{true, false} {
			got, err := outbox.Deregister(t.Context(), b.conn, events.StreamOrders, "gone")
			require.NoError(t, err)
			require.Equal(t, was, got)
		}
		require.EqualValues(t, 1, b.number(`SELECT count(*) FROM consumers`))
		b.eventually(func() bool { return b.firstSeq() == 11 }, "the purge does not go on")
		b.eventually(func() bool { return r.metric(t, "relay_purge_blocked") == 0 }, "the purge is still reported as stopped")

		_, err = outbox.Deregister(t.Context(), b.conn, events.StreamOrders, "Not a name")
		require.ErrorIs(t, err, outbox.ErrRegistration)
		ended, cancel := context.WithDeadline(t.Context(), time.Unix(0, 0))
		defer cancel()
		_, err = outbox.Deregister(ended, b.conn, events.StreamOrders, "mailer")
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

func TestRemoveConsumer(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b *bundle) {
		b.exec(`INSERT INTO consumers (name, durable) VALUES ('gone', 'gone-1'), ('mailer', 'mailer-1')`)
		for _, was := range []bool{true, false} {
			got, err := outbox.RemoveConsumer(t.Context(), b.db, "gone")
			require.NoError(t, err)
			require.Equal(t, was, got)
		}
		require.EqualValues(t, 1, b.number(`SELECT count(*) FROM consumers`))
	})
}
