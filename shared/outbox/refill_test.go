package outbox_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/broker/brokertest"
	"github.com/pillarbox/pillarbox/shared/events"
	"github.com/pillarbox/pillarbox/shared/outbox"
	"github.com/stretchr/testify/require"
)

// refilled waits until a refill of that number is done.
func (b *bundle) refilled(number int64) {
	b.t.Helper()
	b.eventually(func() bool {
		return b.number(`SELECT count(*) FROM relay_state WHERE refill_count >= $1 AND refill_from IS NULL`, number) == 1
	}, fmt.Sprintf("refill %d not done", number))
}

// history makes events of one order and of many.
func history(order string, from, to int64) []outbox.Row {
	var rows []outbox.Row
	for v := from; v <= to; v++ {
		rows = append(rows, row(order, v, 150), orders(1)[0])
	}
	return rows
}

func TestAWipedStreamIsRefilledWhileIdle(t *testing.T) {
	t.Parallel()
	eachProcess(t, func(t *testing.T, b *bundle, p *brokertest.Process) {
		r := b.relay(options{})
		rows := append(history("order", 1, 20), orders(2500)...)
		b.commit(rows...)
		b.drained()
		before := b.stream()
		p.Wipe()
		p.Start() // and no new order comes
		b.refilled(1)
		after := b.stream()
		require.Equal(t, ids(rows), eventIDs(after))
		require.Greater(t, after[0].seq, before[len(before)-1].seq+900_000, "a sequence may be used twice")
		for _, m := range after {
			require.Equal(t, "refill-1:"+m.eventID, m.publishID)
		}
		require.EqualValues(t, len(rows), r.metric(t, "relay_refilled_total"))
		require.EqualValues(t, 1, b.number(`SELECT generation FROM relay_state`))
		b.commit(history("order", 21, 22)...)
		b.drained()
		inEffect(t, b.stream())

		p.Wipe() // and once more: the duplicate window must not swallow it
		p.Start()
		b.refilled(2)
		require.Len(t, inEffect(t, b.stream()), len(rows)+4)
	})
}

func TestWhatIsOlderThanTheHorizonIsNotRefilled(t *testing.T) {
	t.Parallel()
	eachProcess(t, func(t *testing.T, b *bundle, p *brokertest.Process) {
		b.relay(options{})
		old, young := orders(5), orders(1500)
		b.commit(old...)
		b.exec(`UPDATE events SET created_at = created_at - 73 * 3600000000`)
		b.commit(young...)
		b.drained()
		p.Wipe()
		p.Start()
		b.refilled(1)
		require.Equal(t, ids(young), eventIDs(b.stream()))
	})
}

func TestAStreamOfAnOlderCopyGetsExactlyItsLostTail(t *testing.T) {
	t.Parallel()
	eachProcess(t, func(t *testing.T, b *bundle, p *brokertest.Process) {
		copied := t.TempDir()
		r := b.relay(options{})
		first := history("order", 1, 10)
		b.commit(first...)
		b.drained()
		p.Stop()
		require.NoError(t, os.CopyFS(copied, os.DirFS(p.Dir)))
		p.Start()
		var lost []outbox.Row
		for v := int64(11); v <= 40; v += 10 { // several runs in the log
			rows := history("order", v, v+9)
			b.commit(rows...)
			b.drained()
			lost = append(lost, rows...)
		}
		restore(t, p, copied)
		b.refilled(1)
		messages := b.stream()
		require.Equal(t, ids(append(first, lost...)), eventIDs(messages))
		for i, m := range messages {
			require.Equal(t, i >= len(first), strings.HasPrefix(m.publishID, "refill-1:"))
		}
		require.EqualValues(t, len(lost), r.metric(t, "relay_refilled_total"))
		state, err := b.conn.Stream(t.Context(), events.StreamOrders)
		require.NoError(t, err)
		require.EqualValues(t, 2, state.Generation)
		require.EqualValues(t, 2, b.number(`SELECT generation FROM relay_state`))
		b.logCovers(messages)

		// The same copy again, now with refilled messages among the lost ones.
		more := history("order", 41, 45)
		b.commit(more...)
		b.drained()
		restore(t, p, copied)
		b.refilled(2)
		messages = b.stream()
		require.Equal(t, ids(append(append(first, lost...), more...)), eventIDs(messages))
		require.EqualValues(t, 3, b.number(`SELECT generation FROM relay_state`))
		b.logCovers(messages)
	})
}

func restore(t *testing.T, p *brokertest.Process, copied string) {
	t.Helper()
	p.Wipe()
	require.NoError(t, os.CopyFS(p.Dir, os.DirFS(copied)))
	p.Start()
}

// Others make up for the lost sequences before the relay looks.
func TestALostTailIsFoundBehindTheMessagesOfOthers(t *testing.T) {
	t.Parallel()
	for _, others := range []int{3, 500} { // fewer and more than were lost
		t.Run(fmt.Sprint(others), func(t *testing.T) {
			t.Parallel()
			eachProcess(t, func(t *testing.T, b *bundle, p *brokertest.Process) {
				copied := t.TempDir()
				first, lost := history("order", 1, 7), history("order", 8, 90)
				r := b.relay(options{})
				b.commit(first...)
				b.drained()
				p.Stop()
				require.NoError(t, os.CopyFS(copied, os.DirFS(p.Dir)))
				p.Start()
				for i := 0; i < len(lost); i += 83 {
					b.commit(lost[i:min(i+83, len(lost))]...)
					b.drained()
				}
				require.NoError(t, r.stop())
				restore(t, p, copied)
				b.eventually(b.conn.NATS.IsConnected, "not connected again")
				for range others {
					_, err := b.conn.JS.Publish(t.Context(), "orders.route.mailer", []byte("x"))
					require.NoError(t, err)
				}
				b.relay(options{})
				b.refilled(1)
				require.Equal(t, ids(append(first, lost...)), eventIDs(b.stream()))
				require.EqualValues(t, 2, b.number(`SELECT generation FROM relay_state`))
				b.logCovers(b.stream())
			})
		})
	}
}

func TestRowsPublishedBeforeTheLossIsNoticedHideNothing(t *testing.T) {
	t.Parallel()
	eachProcess(t, func(t *testing.T, b *bundle, p *brokertest.Process) {
		copied := t.TempDir()
		first, lost, fresh := history("order", 1, 5), history("other", 1, 5), orders(30)
		var armed atomic.Bool
		r := b.relay(options{hook: func(step string) {
			if step == "relay.read" && armed.CompareAndSwap(true, false) {
				restore(t, p, copied)
				b.eventually(b.conn.NATS.IsConnected, "not connected again")
			}
		}})
		b.commit(first...)
		b.drained()
		p.Stop()
		require.NoError(t, os.CopyFS(copied, os.DirFS(p.Dir)))
		p.Start()
		b.commit(lost...)
		b.drained()
		armed.Store(true)
		b.commit(fresh...) // published to the older copy, over the lost sequences and beyond
		r.Wake()
		b.refilled(1)
		b.drained()
		require.Len(t, inEffect(t, b.stream()), len(first)+len(lost)+len(fresh))
		b.logCovers(b.stream())
	})
}

func TestAListingThatIsKilledGoesOn(t *testing.T) {
	t.Parallel()
	eachProcess(t, func(t *testing.T, b *bundle, p *brokertest.Process) {
		copied := t.TempDir()
		first, lost := history("order", 1, 5), history("order", 6, 20)
		r := b.relay(options{})
		b.commit(first...)
		b.drained()
		p.Stop()
		require.NoError(t, os.CopyFS(copied, os.DirFS(p.Dir)))
		p.Start()
		b.commit(lost...)
		b.drained()
		require.NoError(t, r.stop())
		restore(t, p, copied)
		b.eventually(b.conn.NATS.IsConnected, "not connected again")
		next := b.relay(options{hook: once("refill.listed", func() {
			b.usurp()
			for range 50 { // meanwhile the last sequence looks well again
				_, err := b.conn.JS.Publish(t.Context(), "orders.route.mailer", []byte("x"))
				require.NoError(t, err)
			}
		})})
		b.refilled(1)
		require.EqualValues(t, 1, next.metric(t, "relay_conflicts_total"))
		require.Equal(t, ids(append(first, lost...)), eventIDs(b.stream()))
		b.logCovers(b.stream())
	})
}

func TestACopyThatEndsInsideARunOfTheLog(t *testing.T) {
	t.Parallel()
	eachProcess(t, func(t *testing.T, b *bundle, p *brokertest.Process) {
		b.relay(options{})
		first := history("order", 1, 5)
		b.commit(first...)
		b.drained()
		// As if the log had got these messages and later ones in one run.
		copied := t.TempDir()
		p.Stop()
		require.NoError(t, os.CopyFS(copied, os.DirFS(p.Dir)))
		p.Start()
		second := history("order", 6, 10)
		b.commit(second...)
		b.drained()
		p.Kill()
		list := `["` + strings.Join(ids(append(first, second...)), `","`) + `"]`
		b.exec(`DELETE FROM relay_log`)
		b.exec(`INSERT INTO relay_log (last_seq, event_ids) VALUES (20, $1)`, list)
		restore(t, p, copied)
		b.refilled(1)
		messages := b.stream()
		require.Equal(t, ids(append(first, second...)), eventIDs(messages))
		require.Equal(t, second[0].Event.ID, messages[10].eventID)
		require.Equal(t, "refill-1:"+second[0].Event.ID, messages[10].publishID)
		b.logCovers(messages)
	})
}

func TestARefillThatIsKilledGoesOnBeforeNewRows(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"relay.stream", "refill.listed", "refill.begun", "relay.published", "relay.settled", "refill.published", "refill.ended"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			eachProcess(t, func(t *testing.T, b *bundle, p *brokertest.Process) {
				rows := append(history("order", 1, 20), orders(1200)...) // two pages
				r := b.relay(options{})
				b.commit(rows...)
				b.drained()
				require.NoError(t, r.stop())
				p.Wipe()
				p.Start()
				fresh := history("order", 21, 22)
				b.commit(fresh...) // they must wait
				next := b.relay(options{hook: once(step, b.usurp)})
				b.drained()
				b.refilled(1)
				if step != "refill.ended" && step != "relay.stream" {
					require.EqualValues(t, 1, next.metric(t, "relay_conflicts_total"))
				}
				messages := b.stream()
				require.Len(t, inEffect(t, messages), len(rows)+len(fresh))
				require.Equal(t, ids(fresh), eventIDs(messages[len(messages)-len(fresh):]), "new rows overtook the refill")
				require.Len(t, messages, len(rows)+len(fresh), "the duplicate window did not recognize the page in doubt")
			})
		})
	}
}

func TestALostTailInARefillIsRefilledToo(t *testing.T) {
	t.Parallel()
	eachProcess(t, func(t *testing.T, b *bundle, p *brokertest.Process) {
		copied := t.TempDir()
		r := b.relay(options{})
		first := history("order", 1, 10)
		b.commit(first...)
		b.drained()
		p.Stop()
		require.NoError(t, os.CopyFS(copied, os.DirFS(p.Dir)))
		p.Start()
		second := append(history("order", 11, 600), orders(10)...) // two pages
		b.commit(second...)
		b.drained()
		require.NoError(t, r.stop())
		restore(t, p, copied)
		// After the first refilled page the copy comes back once more.
		b.relay(options{hook: once("relay.settled", func() { restore(t, p, copied) })})
		b.refilled(2)
		// What was published to the copy before the leader noticed is there twice.
		messages := lastOfEach(b.stream())
		require.Equal(t, ids(append(first, second...)), eventIDs(messages))
		require.EqualValues(t, 3, b.number(`SELECT generation FROM relay_state`))
		b.logCovers(messages)
	})
}

// lastOfEach leaves only the last message of each event.
func lastOfEach(all []got) (last []got) {
	for n, m := range all {
		if !slices.ContainsFunc(all[n+1:], func(later got) bool { return later.eventID == m.eventID }) {
			last = append(last, m)
		}
	}
	return last
}

func TestAStreamThatSomebodyElseMadeIsAnotherGeneration(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b *bundle) {
		r := b.relay(options{})
		rows := history("order", 1, 10)
		b.commit(rows...)
		b.drained()
		require.NoError(t, r.stop())
		require.NoError(t, b.conn.JS.DeleteStream(t.Context(), events.StreamOrders))
		_, err := b.conn.JS.CreateStream(t.Context(), jetstream.StreamConfig{Name: events.StreamOrders, Subjects: []string{"orders.>"}})
		require.NoError(t, err)
		b.relay(options{})
		b.refilled(1)
		require.Equal(t, ids(rows), eventIDs(b.stream()))
		state, err := b.conn.Stream(t.Context(), events.StreamOrders)
		require.NoError(t, err)
		require.EqualValues(t, 2, state.Generation, "its sequences were used before")
		b.logCovers(b.stream())
	})
}

func TestAStreamThatIsOlderThanTheDatabaseIsTakenOver(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b *bundle) {
		made, err := b.conn.EnsureStream(t.Context(), broker.StreamConfig{Name: events.StreamOrders, FirstSeq: 500, Generation: 3})
		require.NoError(t, err)
		require.EqualValues(t, 3, made.Generation)
		b.relay(options{})
		rows := orders(10)
		b.commit(rows...)
		b.drained()
		require.EqualValues(t, 3, b.number(`SELECT generation FROM relay_state`))
		require.EqualValues(t, 500, b.stream()[0].seq)
		require.Zero(t, b.number(`SELECT refill_count FROM relay_state`))
	})
}

func TestALostEventThatIsRefusedNowIsSeenAsADeadRow(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b *bundle) {
		r := b.relay(options{})
		rows := []outbox.Row{row("sick", 1, 100), row("sick", 2, 100_000), row("sick", 3, 100), row("well", 1, 100)}
		b.commit(rows...)
		b.drained()
		require.NoError(t, r.stop())
		small := &bundle{t: t, db: b.db, conn: smallServer(t)} // another, empty one
		small.relay(options{})
		small.refilled(1)
		require.Equal(t, []string{rows[0].Event.ID, rows[3].Event.ID}, eventIDs(small.stream()))
		s, err := outbox.ReadStatus(t.Context(), b.db)
		require.NoError(t, err)
		require.EqualValues(t, 1, s.Dead)
		require.EqualValues(t, 1, s.Waiting)
	})
}
