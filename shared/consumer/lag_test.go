package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/broker/brokertest"
	"github.com/pillarbox/pillarbox/shared/consumer"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
	"github.com/pillarbox/pillarbox/shared/events"
	"github.com/pillarbox/pillarbox/shared/logs"
)

// told is a backlog that says what it is told.
type told struct {
	says broker.Backlog
	err  error
}

func (b *told) Backlog(context.Context, string, string) (broker.Backlog, error) { return b.says, b.err }

// lagging is a Lag whose clock stands until it is moved.
type lagging struct {
	*consumer.Lag
	t    *testing.T
	told *told
	now  time.Time
}

func newLag(t *testing.T, db *database.DB, limit time.Duration) *lagging {
	t.Helper()
	l := &lagging{t: t, told: &told{}, now: time.Unix(1_800_000_000, 0)}
	var err error
	l.Lag, err = consumer.NewLag(consumer.LagConfig{Name: "loyalty", Limit: limit, Now: func() time.Time { return l.now }},
		l.told, db, logs.Discard(), nil)
	require.NoError(t, err)
	return l
}

// look looks after a time, when the backlog is so.
func (l *lagging) look(after time.Duration, waiting, floor, last uint64) {
	l.t.Helper()
	l.now = l.now.Add(after)
	l.told.says = broker.Backlog{Waiting: waiting, AckFloor: floor, LastSeq: last}
	require.NoError(l.t, l.Look(l.t.Context()))
}

func TestLagIsTheAgeOfTheOldestUnhandled(t *testing.T) {
	t.Parallel()
	db, _ := databasetest.SQLite(t, "loyalty")
	l := newLag(t, db, time.Hour)
	require.Zero(t, l.Age())
	l.look(0, 0, 0, 0)
	l.look(time.Hour, 1, 0, 1) // came since the last look
	require.Zero(t, l.Age())
	l.look(30*time.Minute, 2, 0, 2)
	require.Equal(t, 30*time.Minute, l.Age())
	require.NoError(t, l.Ready())
	l.look(31*time.Minute, 2, 0, 2)
	require.ErrorContains(t, l.Ready(), "1h1m0s")
	l.look(time.Minute, 1, 1, 2) // the first is handled, the second was seen half an hour later
	require.Equal(t, 32*time.Minute, l.Age())
	require.NoError(t, l.Ready())
	l.look(time.Minute, 0, 2, 2)
	require.Zero(t, l.Age())

	// Under a load that never ceases the age is that of what is in work.
	for n := uint64(3); n < 2000; n++ {
		l.look(5*time.Second, 2, n-2, n)
	}
	require.LessOrEqual(t, l.Age(), 10*time.Second)
	// What nobody handles keeps its age, however many come after it.
	for n := uint64(2000); n < 4000; n++ {
		l.look(5*time.Second, n-1998, 1998, n)
	}
	require.InDelta(t, (2000 * 5 * time.Second).Seconds(), l.Age().Seconds(), 15)
}

func TestLagOfAStreamThatWasLost(t *testing.T) {
	t.Parallel()
	db, _ := databasetest.SQLite(t, "loyalty")
	l := newLag(t, db, time.Hour)
	l.look(0, 5, 100, 105)
	l.look(time.Hour, 2, 90, 92) // restored from an older copy
	require.Zero(t, l.Age())
	l.look(time.Minute, 2, 0, 1_000_200) // made anew
	require.Equal(t, time.Minute, l.Age())
}

func TestLagGrowsWhileTheBrokerIsAway(t *testing.T) {
	t.Parallel()
	db, _ := databasetest.SQLite(t, "loyalty")
	l := newLag(t, db, time.Hour)
	l.look(0, 1, 0, 1)
	l.now, l.told.err = l.now.Add(2*time.Hour), errors.New("away")
	require.Error(t, l.Look(t.Context()))
	require.Error(t, l.Ready())
}

func TestLagOfParkedEvents(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		l := newLag(t, db, time.Hour)
		park := func(id, state string, due, claim time.Duration) {
			require.NoError(t, db.Tx(t.Context(), func(ctx context.Context, tx *database.Tx) error {
				now := tx.Dialect().Now()
				_, err := tx.ExecContext(ctx, fmt.Sprintf(`INSERT INTO parked (event_id, order_id, version, state, event, next_attempt_at, claimed_until)
					VALUES ($1, 'o', 1, $2, $3, %s + $4, %s + $5)`, now, now), id, state, []byte{1}, due.Microseconds(), claim.Microseconds())
				return err
			}))
		}
		park("later", "parked", time.Hour, -time.Hour)
		park("in work", "parked", -3*time.Hour, time.Hour)
		park("for a person", "dead", -3*time.Hour, -time.Hour)
		l.look(0, 0, 0, 0)
		require.NoError(t, l.Ready())
		park("forgotten", "parked", -2*time.Hour, -time.Hour)
		l.look(0, 0, 0, 0)
		require.ErrorContains(t, l.Ready(), "is due for 2h0m")
	})
}

// TestLagAtARealBroker also reads the metrics.
func TestLagAtARealBroker(t *testing.T) {
	t.Parallel()
	db, _ := databasetest.SQLite(t, "loyalty")
	conn := brokertest.Connect(t, brokertest.Server(t))
	registry := prometheus.NewRegistry()
	l, err := consumer.NewLag(consumer.LagConfig{Name: "loyalty", Limit: time.Nanosecond}, conn, db, logs.Discard(), registry)
	require.NoError(t, err)
	require.NoError(t, l.Look(t.Context()), "before there is a stream")
	_, err = conn.EnsureStream(t.Context(), broker.StreamConfig{Name: events.StreamOrders, MaxBytes: 1 << 20})
	require.NoError(t, err)
	made := make(chan struct{}, 1)
	s, err := broker.NewSubscriber(conn, broker.SubscriberConfig{Group: "loyalty", OnDurable: func(context.Context, string) {
		select {
		case made <- struct{}{}:
		default:
		}
	}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	messages, err := s.Subscribe(t.Context(), events.TopicOrders)
	require.NoError(t, err)
	<-made
	require.NoError(t, l.Look(t.Context()))
	require.NoError(t, l.Ready())
	_, err = conn.JS.Publish(t.Context(), events.TopicOrders, []byte("x"))
	require.NoError(t, err)
	m := <-messages
	require.Eventually(t, func() bool { return l.Look(t.Context()) == nil && l.Ready() != nil }, time.Minute, 10*time.Millisecond)
	require.Positive(t, l.Age())
	shown, err := registry.Gather()
	require.NoError(t, err)
	var names []string
	for _, family := range shown {
		names = append(names, family.GetName())
	}
	require.Equal(t, []string{"consumer_oldest_unhandled_seconds", "consumer_overdue_seconds", "consumer_unhandled_messages"}, names)
	m.Ack()
	require.Eventually(t, func() bool { return l.Look(t.Context()) == nil && l.Ready() == nil }, time.Minute, 10*time.Millisecond)
	require.Zero(t, l.Age())
}

func TestLagNeedsItsParts(t *testing.T) {
	t.Parallel()
	_, err := consumer.NewLag(consumer.LagConfig{}, nil, nil, nil, nil)
	require.Error(t, err)
}
