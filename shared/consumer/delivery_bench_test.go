package consumer_test

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/pillarbox/pillarbox/migrations"
	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/broker/brokertest"
	"github.com/pillarbox/pillarbox/shared/consumer"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/events"
	"github.com/pillarbox/pillarbox/shared/logs"
	"github.com/stretchr/testify/require"
)

// BenchmarkDelivery is one replica from a full stream on disk to the last acknowledgement, with an effect of one row per
// event on SQLite, for each policy, and for one that hands everything on along a route.
func BenchmarkDelivery(b *testing.B) {
	for _, c := range []struct {
		name     string
		delivery consumer.Delivery
		route    string
	}{
		{"effectively-once", consumer.EffectivelyOnce, ""},
		{"at-least-once", consumer.AtLeastOnce, ""},
		{"at-most-once", consumer.AtMostOnce, ""},
		{"effectively-once, handed on", consumer.EffectivelyOnce, "loyalty,next"},
	} {
		b.Run(c.name, func(b *testing.B) { benchmarkDelivery(b, c.delivery, c.route) })
	}
}

func benchmarkDelivery(b *testing.B, delivery consumer.Delivery, route string) {
	url := "sqlite:" + filepath.Join(b.TempDir(), "bench.db")
	require.NoError(b, database.Migrate(b.Context(), url, migrations.Of("loyalty"), database.Options{}))
	db, err := database.Open(url, database.Options{})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, db.Close()) })
	conn := brokertest.Connect(b, brokertest.Server(b))
	_, err = conn.EnsureStream(b.Context(), broker.StreamConfig{Name: events.StreamOrders})
	require.NoError(b, err)
	pub := broker.NewPublisher(conn, broker.PublisherConfig{})
	topic := events.TopicOrders
	if route != "" {
		topic = events.RouteTopic("loyalty")
	}
	messages := make([]*message.Message, b.N)
	for i := range messages {
		messages[i] = message.NewMessage(fmt.Sprint("m", i), event(fmt.Sprintf("order-%d", i/3), i%3+1))
		if route != "" {
			messages[i].Metadata.Set(events.HeaderRoute, route)
		}
	}
	require.NoError(b, pub.PublishAll(b.Context(), topic, messages))

	s := consumer.Settings{Delivery: delivery}
	sub, err := broker.NewSubscriber(conn, s.Subscriber("loyalty"))
	require.NoError(b, err)
	c, err := consumer.New(s.Consumer("loyalty", true), consumer.Deps{
		DB: db, Subscriber: sub, Effect: consumer.Apply(record), Publisher: pub, Log: logs.Discard(),
	})
	require.NoError(b, err)
	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	b.ResetTimer()
	go func() { ended <- c.Run(ctx) }()
	for done := false; !done; {
		<-time.After(2 * time.Millisecond)
		q, err := conn.Queue(b.Context(), events.StreamOrders)
		require.NoError(b, err)
		done = len(q.Consumers) == 1 && q.Consumers[0].Idle() && q.Consumers[0].AckFloor > 0
	}
	var effects int
	require.NoError(b, db.Read().QueryRowContext(b.Context(), `SELECT count(*) FROM ledger`).Scan(&effects))
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
	cancel()
	require.NoError(b, <-ended)
	require.LessOrEqual(b, effects, b.N)
}
