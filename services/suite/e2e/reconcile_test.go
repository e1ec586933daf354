package e2e_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/suite/e2e"
	"github.com/pillarbox/pillarbox/shared/events"
	"github.com/pillarbox/pillarbox/shared/reconcile"
)

// TestReconcileNamesWhatAnAdministratorBroke takes one thing of each kind away from running services, as the superuser of
// the database and the operator of the broker.
func TestReconcileNamesWhatAnAdministratorBroke(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1)
	ctx, line, truth := t.Context(), c.Line(), &e2e.Truth{}
	client := e2e.NewClient(truth, line.Stores...)
	place := func() string {
		answer, err := client.Place(ctx, e2e.Body("ada@example.com", "EUR", 1, "9.50"))
		require.NoError(t, err)
		return answer.ID
	}
	var orders []string
	for range 7 {
		orders = append(orders, place())
	}
	require.NoError(t, line.WaitConserved(ctx, truth, &e2e.Mailbox{Folder: line.Pickup}, deadline))
	require.NoError(t, line.Reconcile(ctx))

	want := map[string]bool{}
	broken := func(kind, service, order string, statements ...string) {
		t.Helper()
		for _, s := range statements {
			require.NoError(t, c.SQL(ctx, s))
		}
		want[kind+" "+service+" "+order] = true
	}
	broken("no-effect", "mailer", orders[0], "DELETE FROM mailer.deliveries WHERE order_id = '"+orders[0]+"'")
	broken("lost", "audit", orders[1], "DROP TRIGGER entries_append_only ON audit.entries", "DELETE FROM audit.entries WHERE order_id = '"+orders[1]+"'")
	broken("no-effect", "loyalty", orders[2], "DELETE FROM loyalty.ledger WHERE order_id = '"+orders[2]+"'")
	broken("lane", "mailer", orders[3], "DELETE FROM mailer.lanes WHERE order_id = '"+orders[3]+"'")
	broken("lane", "loyalty", orders[4], "UPDATE loyalty.lanes SET version = 0 WHERE order_id = '"+orders[4]+"'")
	broken("versions", "store", orders[5], "UPDATE store.orders SET version = 2 WHERE id = '"+orders[5]+"'")

	// A message that audit has not had.
	conn, err := nats.Connect(c.NATSURL("operator"))
	require.NoError(t, err)
	defer conn.Close()
	js, err := jetstream.New(conn)
	require.NoError(t, err)
	_, err = js.PauseConsumer(ctx, events.StreamOrders, "audit-1", time.Now().Add(time.Hour))
	require.NoError(t, err)
	order := place()
	require.Eventually(t, func() bool {
		report, err := line.Report(ctx, reconcile.Config{Window: reconcile.Window{Order: order}, Services: []string{"audit"}})
		return err == nil && report.Total() == 0 && report.Subscribers[0].Events[reconcile.Coming] == 1
	}, deadline, 20*time.Millisecond)
	stream, err := js.Stream(ctx, events.StreamOrders)
	require.NoError(t, err)
	deleted := stream.CachedInfo().State.LastSeq
	require.NoError(t, stream.DeleteMsg(ctx, deleted))
	_, err = js.ResumeConsumer(ctx, events.StreamOrders, "audit-1")
	require.NoError(t, err)
	broken("lost", "audit", order)
	// The server answers a deletion before it has written it; the next message is stored after it.
	place()
	require.Eventually(t, func() bool {
		info, err := stream.Info(ctx)
		return err == nil && info.State.LastSeq > deleted
	}, deadline, 20*time.Millisecond)

	// A row of the outbox that the relay has not had.
	require.NoError(t, c.NATS.Kill())
	order = place()
	broken("unpublished", "store", order, "DELETE FROM store.outbox WHERE order_id = '"+order+"'")
	require.NoError(t, c.NATS.Run(ctx))

	var report reconcile.Report
	require.Eventually(t, func() bool { // until the store has found the broker again
		report, err = line.Report(ctx, reconcile.Config{})
		return err == nil
	}, deadline, 50*time.Millisecond)
	got := map[string]bool{}
	for _, f := range report.Findings {
		for _, i := range f.Items {
			got[fmt.Sprintf("%s %s %s", f.Kind, f.Service, i.Order)] = true
		}
	}
	require.Equal(t, want, got)
	require.Empty(t, report.Silent)

	// Who is away is no finding.
	require.NoError(t, c.Services["audit"][0].Kill())
	report, err = line.Report(ctx, reconcile.Config{Services: []string{"audit"}, Pauses: []time.Duration{}})
	require.NoError(t, err)
	require.Len(t, report.Silent, 1)
	require.Contains(t, report.Silent[0].Who, "audit")
	require.Empty(t, report.Subscribers)
	require.NoError(t, c.Services["audit"][0].Run(ctx))
}
