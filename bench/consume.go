package main

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pillarbox/pillarbox/shared/broker"
)

// measureAdapter consumes and acknowledges through our subscriber, and with nats.go alone.
func measureAdapter(ctx context.Context, e *env) error {
	n := e.amount(30_000)
	r, err := measure(ctx, e, []benchCase{
		{"pillarbox subscriber", consumed(e, n, throughOurs)},
		{"bare nats.go", consumed(e, n, throughBare)},
	})
	if err != nil {
		return err
	}
	e.atLeast("T6", "adapter-to-bare-nats", r.ratio("pillarbox subscriber", "bare nats.go", "rate"), 0.7)
	return nil
}

func consumed(e *env, n int, through func(context.Context, *broker.Conn, int) error) func(context.Context) (figures, error) {
	return func(ctx context.Context) (figures, error) {
		_, conn, stop, err := e.broker(ctx)
		if err != nil {
			return nil, err
		}
		defer stop()
		if _, err := conn.EnsureStream(ctx, broker.StreamConfig{Name: "bench", MaxBytes: 1 << 30}); err != nil {
			return nil, err
		}
		p := broker.NewPublisher(conn, broker.PublisherConfig{})
		defer p.Close()
		for left := n; left > 0; left -= 1000 {
			batch := make([]*message.Message, min(1000, left))
			for i := range batch {
				batch[i] = message.NewMessage(uuid.NewString(), payload)
			}
			if _, err := p.PublishAtomic(ctx, "bench.events", batch); err != nil {
				return nil, err
			}
		}
		start := time.Now()
		if err := through(ctx, conn, n); err != nil {
			return nil, err
		}
		return figures{"rate": float64(n) / time.Since(start).Seconds()}, nil
	}
}

func throughOurs(ctx context.Context, conn *broker.Conn, n int) error {
	s, err := broker.NewSubscriber(conn, broker.SubscriberConfig{Group: "bench", MaxInFlight: 500})
	if err != nil {
		return err
	}
	defer s.Close()
	messages, err := s.Subscribe(ctx, "bench.events")
	if err != nil {
		return err
	}
	for range n {
		select {
		case m := <-messages:
			m.Ack()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func throughBare(ctx context.Context, conn *broker.Conn, n int) error {
	c, err := conn.JS.CreateConsumer(ctx, "bench", jetstream.ConsumerConfig{
		Durable: "bare", AckPolicy: jetstream.AckExplicitPolicy, MaxAckPending: 500,
	})
	if err != nil {
		return err
	}
	messages, err := c.Messages(jetstream.PullMaxMessages(500))
	if err != nil {
		return err
	}
	defer messages.Stop()
	for range n {
		m, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return err
		}
		if err := m.Ack(); err != nil {
			return err
		}
	}
	return nil
}
