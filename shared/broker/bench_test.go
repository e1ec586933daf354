package broker_test

import (
	"sync"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/pillarbox/pillarbox/shared/broker"
)

// BenchmarkConsume is consume and ack through the adapter; compare with BenchmarkConsumeBare.
func BenchmarkConsume(b *testing.B) {
	s := setup(b)
	s.publish(b, 0, b.N)
	b.ResetTimer()
	ch := subscribe(b, subscriber(b, s.conn, broker.SubscriberConfig{MaxInFlight: 500}), topic)
	for range b.N {
		(<-ch).Ack()
	}
	b.StopTimer()
}

// BenchmarkConsumeBare is the same with the client library alone.
func BenchmarkConsumeBare(b *testing.B) {
	s := setup(b)
	s.publish(b, 0, b.N)
	c, err := s.conn.JS.CreateConsumer(b.Context(), stream, jetstream.ConsumerConfig{
		Durable: "bare", AckPolicy: jetstream.AckExplicitPolicy, FilterSubject: topic, MaxAckPending: 10_000,
	})
	if err != nil {
		b.Fatal(err)
	}
	b.ResetTimer()
	var all sync.WaitGroup
	all.Add(b.N)
	consuming, err := c.Consume(func(m jetstream.Msg) {
		if m.Ack() == nil {
			all.Done()
		}
	}, jetstream.PullMaxMessages(500))
	if err != nil {
		b.Fatal(err)
	}
	all.Wait()
	b.StopTimer()
	consuming.Stop()
	<-consuming.Closed()
}
