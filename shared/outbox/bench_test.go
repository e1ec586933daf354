package outbox_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/broker/brokertest"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
	"github.com/pillarbox/pillarbox/shared/events"
	"github.com/pillarbox/pillarbox/shared/outbox"
	"github.com/stretchr/testify/require"
)

// TestDrainRate prints what the relay costs beyond the broker: it drains 10,000 rows of
// 700 bytes, and publishes as many in bare batches of the same size.
func TestDrainRate(t *testing.T) {
	if testing.Short() {
		t.Skip("a measurement")
	}
	const rows, page = 10_000, 1000
	t.Run("bare", func(t *testing.T) {
		conn := brokertest.Connect(t, brokertest.Server(t))
		_, err := conn.EnsureStream(t.Context(), broker.StreamConfig{Name: events.StreamOrders})
		require.NoError(t, err)
		p := broker.NewPublisher(conn, broker.PublisherConfig{})
		start := time.Now()
		for range rows / page {
			batch := make([]*message.Message, page)
			for i := range batch {
				batch[i] = message.NewMessage(uuid.NewString(), row("order", 1, 700).Payload)
			}
			_, err := p.PublishAtomic(t.Context(), events.TopicOrders, batch)
			require.NoError(t, err)
		}
		t.Logf("bare atomic batches: %.0f rows/s", rows/time.Since(start).Seconds())
		require.NoError(t, p.Close())
	})
	databasetest.Each(t, "store", func(t *testing.T, db *database.DB) {
		b := &bundle{t: t, db: db, conn: brokertest.Connect(t, brokertest.Server(t))}
		for range rows / page {
			b.commit(many(page)...)
		}
		start := time.Now()
		b.relay(options{})
		b.eventually(func() bool {
			return b.number(`SELECT count(*) FROM (SELECT 1 FROM outbox LIMIT 1) AS head`) == 0
		}, "not drained")
		t.Logf("relay: %.0f rows/s", rows/time.Since(start).Seconds())
	})
}

func many(n int) []outbox.Row {
	rows := make([]outbox.Row, n)
	for i := range rows {
		rows[i] = row(uuid.NewString(), 1, 700)
	}
	return rows
}
