package queue_test

import (
	"database/sql"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/broker/brokertest"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/events"
	"github.com/pillarbox/pillarbox/shared/outbox"
)

func TestConfirm(t *testing.T) {
	t.Parallel()
	p := server(t)
	p.ok("create", "jobs", "-c", "w")
	p.send("jobs", "a", "b")
	for _, args := range [][]string{{"purge", "jobs"}, {"rm", "jobs"}, {"rm", "jobs", "-c", "w"}} {
		_, notes, err := p.do(call{in: "yes\n"}, args...)
		require.ErrorContains(t, err, "needs --yes", "%v on a pipe", args)
		require.Empty(t, notes)
		for _, answer := range []string{"", "y\n", "no\n", "YES\n", " yes\n", strings.Repeat("yes", 1000)} {
			_, notes, err = p.do(call{in: answer, person: true}, args...)
			require.ErrorContains(t, err, "not confirmed", "%v %q", args, answer)
			require.Contains(t, notes, "Type yes to go on")
		}
	}
	require.EqualValues(t, 2, p.consumer("jobs", "w")["depth"])
	out, notes, err := p.do(call{in: "yes\n", person: true}, "purge", "jobs")
	require.NoError(t, err)
	require.Contains(t, notes, "Not acknowledged yet, so lost to them: messages of w.")
	require.Equal(t, "2 messages removed from jobs\n", out)
	require.Equal(t, "0 messages removed from jobs\n", p.ok("purge", "jobs"), "nothing is destroyed, so nothing is asked")
	require.EqualValues(t, 0, p.consumer("jobs", "w")["depth"])
}

func TestPurge(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, p *place) {
		p.ok("create", "jobs")
		p.refused("no consumer", "purge", "jobs", "--acknowledged", "--yes")
		p.ok("create", "jobs", "-c", "fast", "-c", "slow")
		p.send("jobs", "1", "2", "3", "4", "5", "6")
		p.ok("receive", "jobs", "-c", "fast", "-n", "6")
		p.ok("receive", "jobs", "-c", "slow", "-n", "2")
		purged := func(args ...string) any {
			return records(t, p.ok(append([]string{"purge", "jobs", "--yes", "--json"}, args...)...))[0]["purged"]
		}
		require.EqualValues(t, 2, purged("--acknowledged"))
		require.EqualValues(t, 0, purged("--acknowledged"))
		require.EqualValues(t, 1, purged("--before", "4"))
		require.EqualValues(t, 1, purged("--keep", "2"))
		require.EqualValues(t, 0, purged("--keep", "100"))
		require.Equal(t, "5\n", p.ok("receive", "jobs", "-c", "slow"))
		require.EqualValues(t, 2, purged("--before", "1000"))
		p.send("jobs", "7")
		require.EqualValues(t, 7, records(t, p.ok("peek", "jobs", "--json", "--last"))[0]["sequence"])
	})
}

func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, p *place) {
		p.ok("create", "jobs", "-c", "w", "-c", "other")
		p.send("jobs", "a")
		require.Equal(t, "w of jobs is paused\n", p.ok("pause", "jobs", "-c", "w"))
		_, notes, err := p.do(call{}, "receive", "jobs", "-c", "w", "--timeout", "300ms")
		require.Equal(t, 3, status(err))
		require.Contains(t, notes, "consumer w is paused until")
		require.Contains(t, p.ok("ls", "jobs"), "paused")
		require.Equal(t, "a\n", p.ok("receive", "jobs", "-c", "other"))

		require.Len(t, records(t, p.ok("pause", "jobs", "--for", "1h", "--json")), 2)
		require.Contains(t, p.ok("ls", "jobs"), "paused for 59m")
		require.Len(t, records(t, p.ok("resume", "jobs", "--json")), 2)
		require.Equal(t, "a\n", p.ok("receive", "jobs", "-c", "w"))

		p.ok("pause", "jobs", "-c", "w", "--for", "200ms")
		p.send("jobs", "b")
		require.Equal(t, "b\n", p.ok("receive", "jobs", "-c", "w", "--timeout", "10s"))
	})
}

func TestRemoveQueueAndConsumer(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, p *place) {
		p.ok("create", "jobs", "-c", "w")
		p.send("jobs", "a")
		require.Equal(t, "consumer w of jobs removed\n", p.ok("rm", "jobs", "--consumer", "w", "--yes"))
		require.Nil(t, p.consumer("jobs", "w"))
		require.Equal(t, "queue jobs removed\n", p.ok("rm", "jobs", "--yes"))
		p.refused("no queue", "info", "jobs")
	})
}

// fifth makes a subscriber of the orders that the store does not know of, lets it register, and ends it.
func fifth(t *testing.T, p *place) {
	t.Helper()
	conn := p.connect()
	defer conn.Close()
	registrar := outbox.NewRegistrar(conn, events.StreamOrders, "fraud", nil)
	s, err := broker.NewSubscriber(conn, broker.SubscriberConfig{Group: "fraud", OnDurable: registrar.Announce})
	require.NoError(t, err)
	_, err = s.Subscribe(t.Context(), events.TopicOrders)
	require.NoError(t, err)
	require.NoError(t, outbox.Register(t.Context(), conn, events.StreamOrders, "fraud", "fraud-1"))
	require.Eventually(t, func() bool { return p.consumer(events.StreamOrders, "fraud") != nil }, soon, waitTick)
	require.NoError(t, s.Close())
}

// registered tells whether the store still waits for the consumer.
func (p *place) registered(name string) bool {
	p.t.Helper()
	db, err := database.Open("sqlite:"+filepath.Join(p.dir, "store.db"), database.Options{})
	require.NoError(p.t, err)
	defer func() { require.NoError(p.t, db.Close()) }()
	var found string
	err = db.Read().QueryRowContext(p.t.Context(), `SELECT name FROM consumers WHERE name = $1`, name).Scan(&found)
	if err != nil {
		require.ErrorIs(p.t, err, sql.ErrNoRows)
	}
	return err == nil
}

func TestRemoveSubscriberOfARunningSuite(t *testing.T) {
	t.Parallel()
	p := running(t)
	fifth(t, p)
	require.True(t, p.registered("fraud"))
	p.refused("a program reads consumer", "rm", "orders", "-c", "audit", "--yes")
	require.True(t, p.registered("audit"))
	removed := records(t, p.ok("rm", "orders", "-c", "fraud", "--yes", "--json"))[0]
	require.Equal(t, true, removed["deregistered"])
	require.Equal(t, []any{"fraud-1"}, removed["durables"])
	require.False(t, p.registered("fraud"))
	require.Nil(t, p.consumer("orders", "fraud"))
	p.refused("no consumer", "rm", "orders", "-c", "fraud", "--yes")

	// A consumer whose durable is lost stops the purge as well, and can be removed too.
	fifth(t, p)
	require.NoError(t, p.connect().RemoveConsumer(t.Context(), "orders", "fraud-1"))
	require.Contains(t, p.ok("rm", "orders", "-c", "fraud", "--yes"), "and from the store's list")
	require.False(t, p.registered("fraud"))
}

func TestRemoveSubscriberOfAStoppedSuite(t *testing.T) {
	t.Parallel()
	p := folder(t)
	stop := p.startSuite()
	fifth(t, p)
	stop()
	require.Contains(t, p.ok("rm", "orders", "-c", "fraud", "--yes"), "and from the store's list")
	require.False(t, p.registered("fraud"))
	require.True(t, p.registered("audit"))
	require.Nil(t, p.consumer("orders", "fraud"))

	stop = p.startSuite() // and the folder is as a suite wants it
	require.NotNil(t, p.consumer("orders", "audit"))
	stop()
}

// Without its store the queue of one cannot be told that a consumer is gone.
func TestRemoveSubscriberNeedsTheStore(t *testing.T) {
	t.Parallel()
	p := server(t)
	conn := brokertest.ConnectURL(t, p.address[1])
	_, err := conn.EnsureStream(t.Context(), broker.StreamConfig{Name: "orders", Generation: 1})
	require.NoError(t, err)
	p.ok("create", "orders", "-c", "fraud")
	p.refused("no store answers", "rm", "orders", "-c", "fraud", "--yes")
	require.NotNil(t, p.consumer("orders", "fraud"))
}

func TestRemoveOneGeneration(t *testing.T) {
	t.Parallel()
	p := server(t)
	conn := brokertest.ConnectURL(t, p.address[1])
	p.ok("create", "jobs", "-c", "w")
	_, err := conn.EnsureStream(t.Context(), broker.StreamConfig{Name: "jobs", Generation: 2})
	require.NoError(t, err)
	p.ok("create", "jobs", "-c", "w")
	require.Equal(t, "consumer w of jobs removed\n", p.ok("rm", "jobs", "-c", "w-0", "--yes"))
	require.Equal(t, "w-2", p.consumer("jobs", "w")["durable"])
}

// Messages that a program waits for are not taken from it by mistake.
func TestReceiveFromAProgramsConsumer(t *testing.T) {
	t.Parallel()
	p := server(t)
	p.ok("create", "jobs")
	conn := brokertest.ConnectURL(t, p.address[1])
	s, err := broker.NewSubscriber(conn, broker.SubscriberConfig{Group: "program"})
	require.NoError(t, err)
	_, err = s.Subscribe(t.Context(), "jobs")
	require.NoError(t, err)
	require.Eventually(t, func() bool { return p.consumer("jobs", "program") != nil }, soon, waitTick)
	require.NoError(t, s.Close())
	p.send("jobs", "a")
	p.refused("needs --yes", "receive", "jobs", "-c", "program")
	require.EqualValues(t, 1, p.consumer("jobs", "program")["depth"])
	require.Equal(t, "a\n", p.ok("receive", "jobs", "-c", "program", "--yes", "--timeout", (5*time.Second).String()))
}
