package consumer_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"
	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/broker/brokertest"
	"github.com/pillarbox/pillarbox/shared/consumer"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
	"github.com/pillarbox/pillarbox/shared/events"
	"github.com/pillarbox/pillarbox/shared/logs"
	"github.com/stretchr/testify/require"
)

// line is a bundle on a real broker.
type line struct {
	*bundle
	conn *broker.Conn
}

func setupLine(t *testing.T, db *database.DB) *line {
	l := &line{setup(t, db), brokertest.Connect(t, brokertest.Server(t))}
	_, err := l.conn.EnsureStream(t.Context(), broker.StreamConfig{Name: events.StreamOrders})
	require.NoError(t, err)
	return l
}

func (l *line) start(e consumer.Effect) (stop func()) {
	l.t.Helper()
	sub, err := broker.NewSubscriber(l.conn, broker.SubscriberConfig{Group: l.config.Name})
	require.NoError(l.t, err)
	c, err := consumer.New(l.config, consumer.Deps{DB: l.db, Subscriber: sub, Effect: e, Log: logs.Discard()})
	require.NoError(l.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			require.NoError(l.t, <-done)
		})
	}
	l.t.Cleanup(stop)
	return stop
}

func (l *line) publish(bodies ...[]byte) {
	l.t.Helper()
	p := broker.NewPublisher(l.conn, broker.PublisherConfig{})
	batch := make([]*message.Message, len(bodies))
	for i, body := range bodies {
		batch[i] = message.NewMessage("", body)
		batch[i].Metadata.Set(broker.MetaPublishID, fmt.Sprint(time.Now().UnixNano(), "-", i))
	}
	_, err := p.PublishAtomic(context.Background(), events.TopicOrders, batch)
	require.NoError(l.t, err)
}

// TestChangesAtOnceThroughTheBroker: replicas stop and start while orders change.
func TestChangesAtOnceThroughTheBroker(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		l := setupLine(t, db)
		e := &staged{t: t}
		l.config.MaxAttempts = 1
		l.start(e)
		stop := l.start(e)
		const orders, changes = 50, 20
		for v := range changes {
			var round [][]byte
			for o := range orders {
				round = append(round, event(fmt.Sprint("order-", o), v+1))
			}
			l.publish(round...)
			if v%5 == 4 {
				stop()
				stop = l.start(e)
			}
		}
		l.eventually(t, func() bool { return l.effects() == orders*changes }, "all effects")
		for o := range orders {
			require.Equal(t, upTo(changes), l.versions(fmt.Sprint("order-", o)))
		}
		l.eventually(t, func() bool { return l.count(`SELECT count(*) FROM parked`) == 0 }, "no row left")
		l.noLetters(t)
		l.eventually(t, func() bool { return e.open.Load() == 0 }, "each work is ended")
	})
}

// TestRawMessages: what anybody with a client can put on the topic is kept with its headers and place.
func TestRawMessages(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		l := setupLine(t, db)
		l.start(consumer.Apply(record))
		raw := func(header nats.Header, body []byte) {
			_, err := l.conn.JS.PublishMsg(t.Context(), &nats.Msg{Subject: events.TopicOrders, Header: header, Data: body})
			require.NoError(t, err)
		}
		raw(nats.Header{"X": {"1", "2"}}, event("a", 1))
		raw(nil, nil)
		raw(nil, []byte("hello"))
		raw(nats.Header{"Y": {"\xff\x00"}}, []byte("{}"))
		raw(nil, event("b", 1))
		l.eventually(t, func() bool { return l.letters() == 4 && l.versions("b") == "1" }, "four letters, one effect")
		require.Equal(t, []string{`{"X":["1","2"]} a 1 1`}, l.text(
			`SELECT headers || ' ' || order_id || ' ' || version || ' ' || stream_sequence FROM dead_letters WHERE reason LIKE '%2 values%'`))
		require.Zero(t, l.count(`SELECT count(*) FROM dead_letters WHERE subject <> $1`, events.TopicOrders))
	})
}

// TestNewcomerOnARealStream: a consumer whose stream begins in the middle of an old order begins there too,
// as soon as the broker knows that all before is acknowledged.
func TestNewcomerOnARealStream(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		l := setupLine(t, db)
		old := time.Now().Add(-time.Hour)
		l.publish(eventPlaced("old", 5, old), eventPlaced("old", 6, old), event("new", 1))
		l.start(consumer.Apply(record))
		l.eventually(t, func() bool { return l.versions("new") == "1" }, "new order at once")
		l.eventually(t, func() bool { return l.versions("old") == "5 6" }, "old order from version 5")
	})
}
