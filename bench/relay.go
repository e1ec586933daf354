package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	wmsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	suitebench "github.com/pillarbox/pillarbox/services/suite/bench"
	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/broker/embedded"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/events"
	"github.com/pillarbox/pillarbox/shared/logs"
	"github.com/pillarbox/pillarbox/shared/outbox"
)

// payload is of the size of an order's event.
var payload = make([]byte, 700)

// measureRelay moves rows that wait in PostgreSQL to a JetStream that fsyncs always.
func measureRelay(ctx context.Context, e *env) error {
	rows := e.amount(20_000)
	r, err := measure(ctx, e, []benchCase{
		{"pillarbox", relayOf(e, rows)},
		{"bare atomic batches of 100, no database", bareBatches(e, rows, 100)},
		{"bare atomic batches of 1000, no database", bareBatches(e, rows, 1000)},
		{"Watermill's forwarder", forwarderOf(e, max(100, rows/10))},
	})
	if err != nil {
		return err
	}
	e.atLeast("T2", "relay-to-forwarder", r.ratio("pillarbox", "Watermill's forwarder", "rate"), 5)
	e.atLeast("T2", "relay-to-bare-batches-of-100", r.ratio("pillarbox", "bare atomic batches of 100, no database", "rate"), 0.8)
	e.atLeast("T2", "relay-to-bare-batches-of-1000", r.ratio("pillarbox", "bare atomic batches of 1000, no database", "rate"), 0.8)
	return flatRelay(ctx, e)
}

// flatRelay compares the rate at which the first thousand rows leave with the rate at which a
// million does, and looks what is left of the tables.
func flatRelay(ctx context.Context, e *env) error {
	many := e.amount(1_000_000)
	once := *e
	once.Rounds = 1
	r, err := measure(ctx, &once, []benchCase{
		{"1,000 waiting", relayOf(e, 1000)},
		{fmt.Sprintf("%d waiting", many), relayOf(e, many)},
	})
	if err != nil {
		return err
	}
	ratio := r.ratio(fmt.Sprintf("%d waiting", many), "1,000 waiting", "rate")
	e.atLeast("T2", "relay-flat", ratio, 0.65)
	e.atMost("T2", "outbox-left-after-it-MB", r.median(fmt.Sprintf("%d waiting", many), "outbox_mb"), 8)
	return nil
}

func relayOf(e *env, rows int) func(context.Context) (figures, error) {
	return func(ctx context.Context) (f figures, err error) {
		db, _, done, err := e.open(ctx, "postgres", "store")
		if err != nil {
			return nil, err
		}
		defer done()
		_, conn, stop, err := e.broker(ctx)
		if err != nil {
			return nil, err
		}
		defer stop()
		if err := fill(ctx, db, rows); err != nil {
			return nil, err
		}
		relay, err := outbox.NewRelay(outbox.Config{Holder: "bench", MaxBytes: 15 << 30}, db, conn, logs.Discard(), nil)
		if err != nil {
			return nil, err
		}
		cost, err := e.spend(ctx)
		if err != nil {
			return nil, err
		}
		running, end := context.WithCancel(ctx)
		ended := make(chan error, 1)
		start := time.Now()
		go func() { ended <- relay.Run(running) }()
		err = until(ctx, 10*time.Minute, func() (bool, error) {
			stream, err := conn.Stream(ctx, events.StreamOrders)
			return err == nil && stream.Messages >= uint64(rows), nil // not there yet
		})
		elapsed := time.Since(start)
		if err == nil { // the last batch's rows
			err = until(ctx, time.Minute, func() (bool, error) {
				status, err := outbox.ReadStatus(ctx, db)
				return status.Waiting == 0, err
			})
		}
		f = figures{"rate": float64(rows) / elapsed.Seconds()}
		err = errors.Join(err, cost(f, rows))
		if rows >= 100_000 && err == nil {
			f["outbox_mb"], err = compacted(ctx, db)
		}
		end()
		return f, errors.Join(err, <-ended)
	}
}

// fill appends rows to the outbox.
func fill(ctx context.Context, db *database.DB, rows int) error {
	for rows > 0 {
		n := min(rows, 1000)
		batch := make([]outbox.Row, n)
		for i := range batch {
			batch[i] = outbox.Row{Payload: payload, Event: events.Event{
				ID: uuid.NewString(), Subject: uuid.NewString(), Version: 1, Type: events.TypePlaced,
			}}
		}
		if err := db.Batch(ctx, outbox.Statements(db.Dialect(), batch)); err != nil {
			return err
		}
		rows -= n
	}
	return nil
}

// compacted waits until the files of the outbox are given back and returns what it takes on disk.
func compacted(ctx context.Context, db *database.DB) (mb float64, err error) {
	err = until(ctx, time.Minute, func() (bool, error) {
		var bytes int64
		err := db.Read().QueryRowContext(ctx, `SELECT pg_total_relation_size('outbox')`).Scan(&bytes)
		mb = float64(bytes) / (1 << 20)
		return mb < 8, err
	})
	if errors.Is(err, suitebench.ErrSlow) {
		err = nil // the figure says it
	}
	return mb, err
}

func until(ctx context.Context, limit time.Duration, done func() (bool, error)) error {
	return suitebench.Until(ctx, 2*time.Millisecond, limit, done)
}

func bareBatches(e *env, rows, size int) func(context.Context) (figures, error) {
	return func(ctx context.Context) (figures, error) {
		_, conn, stop, err := e.broker(ctx)
		if err != nil {
			return nil, err
		}
		defer stop()
		if _, err := conn.EnsureStream(ctx, broker.StreamConfig{Name: events.StreamOrders, MaxBytes: 15 << 30}); err != nil {
			return nil, err
		}
		p := broker.NewPublisher(conn, broker.PublisherConfig{})
		defer p.Close()
		start := time.Now()
		for left := rows; left > 0; left -= size {
			batch := make([]*message.Message, min(size, left))
			for i := range batch {
				batch[i] = message.NewMessage(uuid.NewString(), payload)
			}
			if _, err := p.PublishAtomic(ctx, events.TopicOrders, batch); err != nil {
				return nil, err
			}
		}
		return figures{"rate": float64(rows) / time.Since(start).Seconds()}, nil
	}
}

// forwarderOf runs Watermill's forwarder from a watermill-sql table to watermill-nats, on the same server.
func forwarderOf(e *env, rows int) func(context.Context) (figures, error) {
	return func(ctx context.Context) (figures, error) {
		url, drop, err := e.postgres(ctx, "store")
		if err != nil {
			return nil, err
		}
		defer drop()
		p, err := pool(ctx, url, "store", 8)
		if err != nil {
			return nil, err
		}
		defer p.Close()
		server, _, stop, err := e.broker(ctx)
		if err != nil {
			return nil, err
		}
		defer stop()
		to, err := natsTarget(ctx, server)
		if err != nil {
			return nil, err
		}
		defer to.conn.Close()
		nop := watermill.NopLogger{}
		begin := wmsql.BeginnerFromPgx(p)
		schema, offsets := wmsql.DefaultPostgreSQLSchema{SubscribeBatchSize: 100}, wmsql.DefaultPostgreSQLOffsetsAdapter{}
		from, err := wmsql.NewSubscriber(begin, wmsql.SubscriberConfig{
			SchemaAdapter: schema, OffsetsAdapter: offsets, InitializeSchema: true, PollInterval: 10 * time.Millisecond,
		}, nop)
		if err != nil {
			return nil, err
		}
		if err := from.SubscribeInitialize("outbox"); err != nil {
			return nil, err
		}
		into, err := wmsql.NewPublisher(begin, wmsql.PublisherConfig{SchemaAdapter: schema}, nop)
		if err != nil {
			return nil, err
		}
		out := forwarder.NewPublisher(into, forwarder.PublisherConfig{ForwarderTopic: "outbox"})
		for left := rows; left > 0; left -= 100 {
			batch := make([]*message.Message, min(100, left))
			for i := range batch {
				batch[i] = message.NewMessage(uuid.NewString(), payload)
			}
			if err := out.Publish("forwarded", batch...); err != nil {
				return nil, err
			}
		}
		f, err := forwarder.NewForwarder(from, to.publisher, nop, forwarder.Config{ForwarderTopic: "outbox"})
		if err != nil {
			return nil, err
		}
		running, end := context.WithCancel(ctx)
		defer end()
		start := time.Now()
		go func() { _ = f.Run(running) }() // ends with running
		defer f.Close()
		err = until(ctx, 5*time.Minute, func() (bool, error) {
			info, err := to.js.StreamInfo("forwarded")
			return err == nil && info.State.Msgs >= uint64(rows), err
		})
		return figures{"rate": float64(rows) / time.Since(start).Seconds()}, err
	}
}

type destination struct {
	conn      *nats.Conn
	js        nats.JetStreamContext
	publisher message.Publisher
}

func natsTarget(_ context.Context, server *embedded.Server) (t destination, err error) {
	if t.conn, err = nats.Connect(server.ClientURL(), nats.Token(server.Token())); err != nil {
		return t, err
	}
	if t.js, err = t.conn.JetStream(); err != nil {
		return t, err
	}
	if _, err = t.js.AddStream(&nats.StreamConfig{Name: "forwarded", Subjects: []string{"forwarded"}}); err != nil {
		return t, err
	}
	t.publisher, err = wmnats.NewPublisherWithNatsConn(t.conn, wmnats.PublisherPublishConfig{
		Marshaler: &wmnats.NATSMarshaler{}, SubjectCalculator: wmnats.DefaultSubjectCalculator,
	}, watermill.NopLogger{})
	return t, err
}
