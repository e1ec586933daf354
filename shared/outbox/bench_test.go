package outbox_test

import (
	"os"
	"strconv"
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

// rowsEnv is how many rows TestDrainRate drains; a million shows whether the rate stays flat.
const rowsEnv = "OUTBOX_BENCH_ROWS"

// TestDrainRate prints what the relay costs beyond the broker: it drains rows of
// 700 bytes, and publishes 10,000 in bare batches of the same size.
func TestDrainRate(t *testing.T) {
	if testing.Short() {
		t.Skip("a measurement")
	}
	rows, page := 10_000, 1000
	if more, err := strconv.Atoi(os.Getenv(rowsEnv)); err == nil {
		rows = more
	}
	t.Run("bare", func(t *testing.T) {
		conn := brokertest.Connect(t, brokertest.Server(t))
		_, err := conn.EnsureStream(t.Context(), broker.StreamConfig{Name: events.StreamOrders})
		require.NoError(t, err)
		p := broker.NewPublisher(conn, broker.PublisherConfig{})
		start := time.Now()
		for range 10 {
			batch := make([]*message.Message, page)
			for i := range batch {
				batch[i] = message.NewMessage(uuid.NewString(), row("order", 1, 700).Payload)
			}
			_, err := p.PublishAtomic(t.Context(), events.TopicOrders, batch)
			require.NoError(t, err)
		}
		t.Logf("bare atomic batches: %.0f rows/s", 10_000/time.Since(start).Seconds())
		require.NoError(t, p.Close())
	})
	databasetest.Each(t, "store", func(t *testing.T, db *database.DB) {
		b := &bundle{t: t, db: db, conn: brokertest.Connect(t, brokertest.Server(t))}
		for range rows / page {
			batch := make([]outbox.Row, page)
			for i := range batch {
				batch[i] = row(uuid.NewString(), 1, 700)
			}
			b.commit(batch...)
		}
		start := time.Now()
		b.relay(options{config: outbox.Config{MaxBytes: 16 << 30}})
		for tenth := 1; tenth <= 10; tenth++ {
			from := time.Now()
			b.eventually(func() bool {
				return b.number(`SELECT max(last_seq) FROM relay_state`) >= int64(rows/10*tenth)
			}, "not drained")
			if rows >= 100_000 {
				t.Logf("tenth %d: %.0f rows/s", tenth, float64(rows/10)/time.Since(from).Seconds())
			}
		}
		t.Logf("relay: %.0f rows/s", float64(rows)/time.Since(start).Seconds())
	})
}

// TestReplayRate prints how fast a new subscriber gets the past, of rows of 700 bytes: published by the relay alone,
// to the broker's confirmation and the database's.
func TestReplayRate(t *testing.T) {
	if testing.Short() {
		t.Skip("a measurement")
	}
	const rows, page = 20_000, 1000
	databasetest.Each(t, "store", func(t *testing.T, db *database.DB) {
		b := &bundle{t: t, db: db, conn: brokertest.Connect(t, brokertest.Server(t))}
		for range rows / page {
			batch := make([]outbox.Row, page)
			for i := range batch {
				batch[i] = row(uuid.NewString(), 1, 700)
			}
			b.commit(batch...)
		}
		b.exec(`DELETE FROM outbox`)
		b.relay(options{})
		start := time.Now()
		b.subscribe("stock", 1, time.Unix(0, 0))
		b.eventually(func() bool { return b.replayState("stock") == "published" }, "not published")
		t.Logf("replay: %.0f rows/s", rows/time.Since(start).Seconds())
	})
}
