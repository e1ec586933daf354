package outbox_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/broker/brokertest"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
	"github.com/pillarbox/pillarbox/shared/events"
	"github.com/pillarbox/pillarbox/shared/logs"
	"github.com/pillarbox/pillarbox/shared/outbox"
	"github.com/stretchr/testify/require"
)

func TestAFullStreamHoldsTheRelayAndLosesNothing(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b *bundle) {
		r := b.relay(options{config: outbox.Config{MaxBytes: 1 << 20}})
		var rows []outbox.Row
		for v := int64(1); v <= 30; v++ {
			rows = append(rows, row("order", v, 100_000))
		}
		b.commit(rows...)
		b.eventually(func() bool { return r.metric(t, "relay_stream_full_total") > 1 }, "the stream did not get full")
		require.Positive(t, b.number(`SELECT count(*) FROM outbox`))
		var all []got
		s, err := b.conn.JS.Stream(t.Context(), events.StreamOrders)
		require.NoError(t, err)
		b.eventually(func() bool { // as an operator makes room
			there := b.stream()
			if len(there) > 0 && s.Purge(t.Context(), jetstream.WithPurgeSequence(there[len(there)-1].seq+1)) == nil {
				all = append(all, there...)
			}
			return len(all) >= len(rows)
		}, "not all rows published")
		require.Equal(t, ids(rows), eventIDs(all))
		b.drained()
	})
}

// smallServer takes messages up to 64 KB only.
func smallServer(t *testing.T) *broker.Conn {
	t.Helper()
	s, err := server.NewServer(&server.Options{
		DontListen: true, NoSigs: true, JetStream: true, StoreDir: t.TempDir(), MaxPayload: 64 << 10,
	})
	require.NoError(t, err)
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	require.True(t, s.ReadyForConnections(patience))
	conn, err := broker.Connect(broker.Config{Server: s}, logs.Discard())
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	return conn
}

func TestARefusedEventHoldsOnlyItsOrder(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "store", func(t *testing.T, db *database.DB) {
		b := &bundle{t: t, db: db, conn: smallServer(t)}
		sick := []outbox.Row{row("sick", 1, 100), row("sick", 2, 100_000), row("sick", 3, 100), row("sick", 4, 100)}
		before, after := orders(100), orders(100)
		b.commit(append(append(before, sick[:3]...), after...)...)
		r := b.relay(options{})
		b.eventually(func() bool { return b.number(`SELECT count(*) FROM outbox`) == 2 }, "the others did not go on")
		b.commit(append([]outbox.Row{sick[3]}, orders(3)...)...)
		b.eventually(func() bool { return b.number(`SELECT count(*) FROM outbox`) == 3 }, "later ones did not go on")
		s, err := outbox.ReadStatus(t.Context(), db)
		require.NoError(t, err)
		require.EqualValues(t, 1, s.Dead)
		require.EqualValues(t, 2, s.Waiting)
		count := inEffect(t, b.stream())
		require.Len(t, count, 204)
		require.Contains(t, count, sick[0].Event.ID)
		require.Zero(t, r.metric(t, "relay_errors_total"))
		// Whoever removes the reason sets the order going again.
		b.exec(`UPDATE events SET payload = (SELECT payload FROM events WHERE id = $1) WHERE id = $2`, sick[0].Event.ID, sick[1].Event.ID)
		b.exec(`UPDATE outbox SET dead_reason = NULL`)
		b.drained()
	})
}

func TestABrokerThatIsAwayIsWaitedFor(t *testing.T) {
	t.Parallel()
	eachProcess(t, func(t *testing.T, b *bundle, p *brokertest.Process) {
		r := b.relay(options{})
		first := orders(20)
		b.commit(first...)
		b.drained()
		p.Kill()
		second := orders(20)
		b.commit(second...)
		r.Wake()
		b.eventually(func() bool { return r.metric(t, "relay_errors_total") > 1 }, "nothing was tried")
		p.Start()
		b.drained()
		require.Equal(t, ids(append(first, second...)), eventIDs(b.stream()))
		require.Zero(t, r.metric(t, "relay_refilled_total"))
	})
}

func TestABrokerKilledUnderLoadGetsEachOrderInOrder(t *testing.T) {
	t.Parallel()
	eachProcess(t, func(t *testing.T, b *bundle, p *brokertest.Process) {
		r := b.relay(options{})
		var version atomic.Int64
		var all []string
		for range 3 {
			for range 60 {
				rows := []outbox.Row{row("order", version.Add(1), 100), row("order", version.Add(1), 100)}
				rows = append(rows, orders(10)...)
				all = append(all, ids(rows)...)
				b.commit(rows...)
				r.Wake()
			}
			p.Restart()
		}
		b.drained()
		count := inEffect(t, b.stream())
		require.Len(t, count, len(all))
	})
}

func TestAnUnknownOutcomeIsSettledBySingles(t *testing.T) {
	t.Parallel()
	eachProcess(t, func(t *testing.T, b *bundle, p *brokertest.Process) {
		var rows []outbox.Row
		for v := int64(1); v <= 40; v++ {
			rows = append(rows, row("order", v, 100))
		}
		r := b.relay(options{hook: once("relay.read", p.Freeze), config: outbox.Config{LeaseTTL: time.Minute}})
		b.eventually(func() bool { return r.metric(t, "relay_leader") == 1 }, "no leader")
		b.commit(rows...)
		r.Wake()
		b.eventually(func() bool { return r.metric(t, "relay_errors_total") > 0 }, "the publish did not time out")
		require.EqualValues(t, 40, b.number(`SELECT count(*) FROM outbox`))
		p.Thaw() // and the batch that was given up is stored
		b.drained()
		require.Equal(t, ids(rows), eventIDs(b.stream()))
		b.logCovers(b.stream())
	})
}
