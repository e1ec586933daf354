package outbox_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/events"
	"github.com/pillarbox/pillarbox/shared/logs"
	"github.com/pillarbox/pillarbox/shared/outbox"
	"github.com/stretchr/testify/require"
)

func TestEachOrderArrivesInOrderFromManyCommitters(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b *bundle) {
		r := b.relay(options{})
		const committers, versions = 12, 40
		var all sync.WaitGroup
		for range committers {
			all.Go(func() {
				order := uuid.NewString()
				for v := int64(1); v <= versions; v++ {
					rows := []outbox.Row{row(order, v, 200)}
					if v%10 == 0 { // sometimes a group
						rows = append(rows, orders(20)...)
					}
					b.commit(rows...)
					r.Wake()
				}
			})
		}
		all.Wait()
		b.drained()
		messages := b.stream()
		count := inEffect(t, messages)
		require.Len(t, messages, committers*(versions+versions/10*20))
		require.Len(t, count, len(messages), "an event was published twice")
		for _, m := range messages {
			require.Equal(t, m.eventID, m.publishID)
		}
		b.logCovers(messages)
	})
}

// logCovers checks that the relay's log and state say of each message where it is.
func (b *bundle) logCovers(messages []got) {
	b.t.Helper()
	rows, err := b.db.Read().QueryContext(b.t.Context(), `SELECT last_seq, event_ids FROM relay_log`)
	require.NoError(b.t, err)
	defer func() { require.NoError(b.t, rows.Close()) }()
	logged := map[uint64]string{}
	for rows.Next() {
		var last uint64
		var list string
		require.NoError(b.t, rows.Scan(&last, &list))
		run := strings.Split(strings.Trim(list, `[]"`), `","`)
		for i, id := range run {
			logged[last-uint64(len(run)-1-i)] = id
		}
	}
	require.NoError(b.t, rows.Err())
	for _, m := range messages {
		require.Equal(b.t, m.eventID, logged[m.seq])
	}
	require.Len(b.t, logged, len(messages))
	if len(messages) > 0 {
		require.EqualValues(b.t, messages[len(messages)-1].seq, b.number(`SELECT last_seq FROM relay_state`))
	}
}

func TestARowThatCommitsLateIsNotLost(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b *bundle) {
		if !b.db.Dialect().Postgres() {
			t.Skip("one writer: nothing commits late")
		}
		b.relay(options{})
		late, early := row("late", 1, 100), row("early", 1, 100)
		require.NoError(t, b.db.Tx(t.Context(), func(ctx context.Context, tx *database.Tx) error {
			if err := outbox.Append(ctx, tx, []outbox.Row{late}); err != nil {
				return err
			}
			b.commit(early) // with a higher number
			b.drained()
			return nil
		}))
		b.eventually(func() bool { return len(b.stream()) == 2 }, "the late row was not published")
		require.Equal(t, []string{early.Event.ID, late.Event.ID}, eventIDs(b.stream()))
		b.drained()
	})
}

func TestACrashAfterThePublishRepeatsUnderTheSameID(t *testing.T) {
	t.Parallel()
	for _, n := range []int{3, 300} { // singles, a batch
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			each(t, func(t *testing.T, b *bundle) {
				rows := orders(n)
				b.commit(rows...)
				r := b.relay(options{hook: once("relay.published", b.usurp)})
				b.drained()
				b.commit(row("later", 1, 100), row("later", 2, 100))
				b.drained()
				require.EqualValues(t, 1, r.metric(t, "relay_conflicts_total"))
				messages := b.stream()
				require.Len(t, messages, n+2, "the broker took a repeated publish for a new one")
				require.Equal(t, ids(rows), eventIDs(messages[:n]))
				b.logCovers(messages)
			})
		})
	}
}

func TestRowsBehindADoubtfulBatchKeepTheirOrder(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b *bundle) {
		var rows []outbox.Row
		for v := int64(1); v <= 20; v++ {
			rows = append(rows, row("order", v, 100))
		}
		b.commit(rows[:15]...)
		b.relay(options{hook: once("relay.published", func() {
			b.usurp()
			b.commit(rows[15:]...) // the next page holds old and new rows
		})})
		b.eventually(func() bool { return b.number(`SELECT count(*) FROM events`) == 20 }, "the hook was not reached")
		b.drained()
		require.Equal(t, ids(rows), eventIDs(b.stream()))
		b.logCovers(b.stream())
	})
}

func TestAFrozenLeaderNeitherAddsNorReorders(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"relay.read", "relay.published"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			each(t, func(t *testing.T, b *bundle) {
				frozen, thaw := make(chan struct{}), make(chan struct{})
				var rows []outbox.Row
				for v := int64(1); v <= 12; v++ {
					rows = append(rows, row("order", v, 100))
				}
				b.commit(rows...)
				first := b.relay(options{hook: once(step, func() { close(frozen); <-thaw })})
				<-frozen
				b.exec(`UPDATE leases SET expires_at = 0`)
				second := b.relay(options{})
				b.drained()
				more := []outbox.Row{row("order", 13, 100), row("order", 14, 100)}
				b.commit(more...)
				b.drained()
				close(thaw)
				b.eventually(func() bool { return first.metric(t, "relay_conflicts_total") > 0 }, "no write was refused")
				require.Zero(t, second.metric(t, "relay_conflicts_total"))
				require.Equal(t, ids(append(rows, more...)), eventIDs(b.stream()))
				b.logCovers(b.stream())
			})
		})
	}
}

func TestAnotherReplicasWakeReachesTheLeader(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b *bundle) {
		if !b.db.Dialect().Postgres() {
			t.Skip("a SQLite file serves one process, so whoever starts leads")
		}
		leader := b.relay(options{config: outbox.Config{Poll: time.Hour}})
		b.eventually(func() bool { return leader.metric(t, "relay_leader") == 1 }, "no leader")
		follower := b.relay(options{config: outbox.Config{Poll: time.Hour}})
		b.commit(orders(3)...)
		// Until it arrives: the leader may be between its look and its subscription.
		b.eventually(func() bool {
			follower.Wake()
			return b.number(`SELECT count(*) FROM outbox`) == 0
		}, "the hint did not arrive")
		require.Zero(t, follower.metric(t, "relay_published_total"))
	})
}

func TestWakeNeverBlocks(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b *bundle) {
		r, err := outbox.NewRelay(outbox.Config{Holder: "h"}, b.db, b.conn, logs.Discard(), nil)
		require.NoError(t, err)
		for range 10_000 { // nobody listens
			r.Wake()
		}
	})
}

func TestStopFinishesWhatIsUnderWayAndHandsOver(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b *bundle) {
		published, goOn := make(chan struct{}), make(chan struct{})
		b.commit(orders(20)...)
		r := b.relay(options{hook: once("relay.published", func() { close(published); <-goOn })})
		<-published
		stopped := make(chan error)
		go func() { stopped <- r.stop() }()
		b.eventually(func() bool { return r.stopping() }, "stop has not begun")
		close(goOn)
		require.NoError(t, <-stopped)
		require.Zero(t, b.number(`SELECT count(*) FROM outbox`), "published rows were left to be repeated")
		b.commit(orders(1)...)
		b.relay(options{config: outbox.Config{LeaseTTL: time.Hour}})
		b.drained()
	})
}

func TestConfigNamesEveryProblem(t *testing.T) {
	t.Parallel()
	require.NoError(t, outbox.Config{Holder: "h"}.Validate())
	err := outbox.Config{
		LeaseTTL: time.Millisecond, Poll: -1, Horizon: time.Second, MaxBytes: 1, Replicas: 9, Topic: "other.events",
	}.Validate()
	for _, word := range []string{"holder", "lease", "poll", "horizon", "size", "replicas", "topic"} {
		require.ErrorContains(t, err, word)
	}
	require.NoError(t, outbox.Config{Holder: "h", Topic: events.TopicOrders}.Validate())
}
