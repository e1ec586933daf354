package outbox_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/pillarbox/pillarbox/shared/broker/brokertest"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/events"
	"github.com/pillarbox/pillarbox/shared/outbox"
	"github.com/pillarbox/pillarbox/shared/reconcile"
	"github.com/stretchr/testify/require"
)

func (b *bundle) account(c outbox.Config) *outbox.Account {
	return outbox.NewAccount(c, b.db, b.conn, func(context.Context, database.Querier, reconcile.Window, string) (reconcile.OrderPage, error) {
		return reconcile.OrderPage{}, nil
	})
}

// history is what the account gives of all events, by id.
func (b *bundle) asked(a *outbox.Account) []reconcile.Event {
	b.t.Helper()
	o, err := a.Overview(b.t.Context(), reconcile.Window{})
	require.NoError(b.t, err)
	page, err := a.Events(b.t.Context(), reconcile.Window{}, o.After, o.UpTo)
	require.NoError(b.t, err)
	return page
}

// places are those of the events in the order of events.seq.
func (b *bundle) places(a *outbox.Account, subscriber string) []reconcile.Place {
	b.t.Helper()
	places, err := a.Places(b.t.Context(), subscriber, b.asked(a))
	require.NoError(b.t, err)
	return places
}

func same(place reconcile.Place, n int) (all []reconcile.Place) {
	for range n {
		all = append(all, place)
	}
	return all
}

func (b *bundle) registers(name string) {
	b.t.Helper()
	require.NoError(b.t, outbox.Register(b.t.Context(), b.conn, events.StreamOrders, name, name+"-1"))
}

// TestPlacesOnTheWayOfAnEvent follows events from the outbox to the acknowledgement.
func TestPlacesOnTheWayOfAnEvent(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b *bundle) {
		a := b.account(outbox.Config{})
		order := uuid.NewString()
		b.commit(row(order, 1, 100), row(order, 2, 100), row(uuid.NewString(), 1, 100))
		require.Equal(t, same(reconcile.InOutbox, 3), b.places(a, "audit"))
		require.Equal(t, same(reconcile.InOutbox, 3), b.places(a, ""))
		b.exec(`UPDATE outbox SET dead_reason = 'too large' WHERE seq = (SELECT min(seq) FROM outbox)`)
		require.Equal(t, []reconcile.Place{reconcile.Refused, reconcile.Held, reconcile.InOutbox}, b.places(a, "audit"))
		b.exec(`UPDATE outbox SET dead_reason = NULL`)

		b.relay(options{})
		b.drained()
		require.Equal(t, same(reconcile.InStream, 3), b.places(a, "audit"), "nobody has registered")
		reader := b.reader("audit")
		b.registers("audit")
		b.step(reader, 2)
		require.Equal(t, []reconcile.Place{reconcile.Gone, reconcile.Gone, reconcile.InStream}, b.places(a, "audit"))
		require.Equal(t, same(reconcile.Gone, 3), b.places(a, ""), "published")

		stream, err := b.conn.JS.Stream(t.Context(), events.StreamOrders)
		require.NoError(t, err)
		require.NoError(t, stream.DeleteMsg(t.Context(), 3))
		require.Equal(t, same(reconcile.Gone, 3), b.places(a, "audit"), "a message was removed")
		require.Equal(t, []reconcile.Place{reconcile.InStream, reconcile.InStream, reconcile.Gone}, b.places(a, "other"), "for who has had nothing")

		b.exec(`DELETE FROM relay_log`)
		require.Equal(t, same(reconcile.Unpublished, 3), b.places(a, ""))
		b.exec(`UPDATE events SET created_at = created_at - $1`, (80 * time.Hour).Microseconds())
		require.Equal(t, same(reconcile.Old, 3), b.places(a, "audit"))
		require.Equal(t, same(reconcile.Old, 3), b.places(a, ""))
	})
}

// TestPlacesOnARoute follows an event from one subscriber to the next.
func TestPlacesOnARoute(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b *bundle) {
		config := onRoute("mailer", "audit")
		b.relay(options{config: config})
		a := b.account(config)
		b.commit(orders(2)...)
		b.drained()
		mailer, audit := b.reader("mailer"), b.reader("audit")
		b.registers("mailer")
		b.registers("audit")
		require.Equal(t, same(reconcile.InStream, 2), b.places(a, "mailer"))
		require.Equal(t, same(reconcile.OnRoute, 2), b.places(a, "audit"))
		require.Equal(t, same(reconcile.Elsewhere, 2), b.places(a, "loyalty"))
		b.step(mailer, 1)
		require.Equal(t, []reconcile.Place{reconcile.Gone, reconcile.InStream}, b.places(a, "mailer"))
		require.Equal(t, []reconcile.Place{reconcile.InStream, reconcile.OnRoute}, b.places(a, "audit"))
		b.step(mailer, 1)
		b.step(audit, 1)
		require.Equal(t, []reconcile.Place{reconcile.Gone, reconcile.InStream}, b.places(a, "audit"))
		// Events that are on a route stay so when the setting changes.
		b.step(audit, 1)
		b.commit(orders(1)...)
		b.drained()
		require.NotEqual(t, reconcile.Gone, b.places(b.account(outbox.Config{}), "audit")[2])
	})
}

// TestPlacesOfAReplay: what a new subscriber asked for comes.
func TestPlacesOfAReplay(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b *bundle) {
		a := b.account(outbox.Config{})
		relay := b.relay(options{})
		b.commit(orders(3)...)
		b.drained()
		stream, err := b.conn.JS.Stream(t.Context(), events.StreamOrders)
		require.NoError(t, err)
		require.NoError(t, stream.Purge(t.Context()))
		require.Equal(t, same(reconcile.Gone, 3), b.places(a, "new"))
		require.NoError(t, relay.stop())
		b.exec(`INSERT INTO replays (name, number, state, from_time, begin_after, up_to, done_up_to) VALUES ('new', 1, 'running', 0, 0, 3, 0)`)
		require.Equal(t, same(reconcile.InStream, 3), b.places(a, "new"))
		b.relay(options{})
		b.eventually(func() bool { return b.number(`SELECT count(*) FROM replays WHERE state = 'published'`) == 1 }, "not replayed")
		require.Equal(t, same(reconcile.InStream, 3), b.places(a, "new"))
		reader := b.reader("new")
		b.exec(`INSERT INTO consumers (name, durable) VALUES ('new', 'new-1')`)
		b.step(reader, 2)
		require.Equal(t, []reconcile.Place{reconcile.Gone, reconcile.Gone, reconcile.InStream}, b.places(a, "new"))
	})
}

// TestPlacesAfterALoss: what the broker lost is published again, and until then nothing of it is lost.
func TestPlacesAfterALoss(t *testing.T) {
	t.Parallel()
	eachProcess(t, func(t *testing.T, b *bundle, p *brokertest.Process) {
		a := b.account(outbox.Config{})
		relay := b.relay(options{})
		b.commit(orders(3)...)
		b.drained()
		require.NoError(t, relay.stop())
		p.Kill()
		_, err := a.Places(t.Context(), "audit", b.asked(a))
		require.Error(t, err, "without the broker nobody knows")
		p.Wipe()
		p.Start()
		b.eventually(func() bool { return b.conn.Ready(t.Context()) == nil }, "no broker")
		require.Equal(t, same(reconcile.InRefill, 3), b.places(a, "audit"))
		b.relay(options{})
		b.refilled(1)
		require.Equal(t, same(reconcile.InStream, 3), b.places(a, "audit"))
	})
}

func TestOverview(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b *bundle) {
		a := b.account(outbox.Config{Sequential: true, Route: events.Route{"mailer"}})
		rows := orders(3)
		b.commit(rows...)
		b.exec(`DELETE FROM events WHERE id = $1`, rows[1].Event.ID)
		b.exec(`INSERT INTO consumers (name, durable) VALUES ('audit', 'audit-1')`)
		o, err := a.Overview(t.Context(), reconcile.Window{})
		require.NoError(t, err)
		require.Equal(t, []string{"audit"}, o.Consumers)
		require.Equal(t, []string{rows[1].Event.ID}, o.Strays)
		require.Equal(t, []string{"mailer"}, o.Sequential)
		require.EqualValues(t, 3, o.Waiting)
		require.Len(t, b.asked(a), 2)

		since := reconcile.Window{Since: time.Now().Add(time.Hour)}
		o, err = a.Overview(t.Context(), since)
		require.NoError(t, err)
		require.Equal(t, o.UpTo, o.After)
		page, err := a.Events(t.Context(), reconcile.Window{Order: rows[2].Event.Subject}, 0, o.UpTo)
		require.NoError(t, err)
		require.Len(t, page, 1)
		unknown, err := a.Unknown(t.Context(), []string{rows[0].Event.ID, "x", rows[1].Event.ID})
		require.NoError(t, err)
		require.Equal(t, []string{"x", rows[1].Event.ID}, unknown)
		_, err = a.Unknown(t.Context(), make([]string, reconcile.MaxEvents+1))
		require.ErrorIs(t, err, reconcile.ErrInvalid)
	})
}
