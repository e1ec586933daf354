package e2e_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/suite/e2e"
)

// operator runs suite queue as the operators' user of the broker.
type operator struct {
	t   *testing.T
	url string
}

func (o operator) queue(args ...string) string {
	o.t.Helper()
	r := run(o.t, "suite", []string{"PILLARBOX_NATS_URL=" + o.url}, append([]string{"queue"}, args...)...)
	require.Zero(o.t, r.status, "%v: %s", args, r.stderr)
	return r.stdout
}

// seen is what the command shows of a consumer.
type seen struct {
	Consumer    string     `json:"consumer"`
	Depth       int        `json:"depth"`
	InFlight    int        `json:"in_flight"`
	PausedUntil *time.Time `json:"paused_until"`
}

func (o operator) consumer(name string) seen {
	o.t.Helper()
	var orders struct {
		Consumers []seen `json:"consumers"`
	}
	require.NoError(o.t, json.Unmarshal([]byte(o.queue("info", "orders", "--json")), &orders))
	for _, c := range orders.Consumers {
		if c.Consumer == name {
			return c
		}
	}
	require.Fail(o.t, "no such consumer", "%s in %v", name, orders.Consumers)
	return seen{}
}

// TestOperatorOnSeparateServices uses the queue commands with the shipped operators' user on a line that works.
func TestOperatorOnSeparateServices(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t, 1)
	o := operator{t, cluster.NATSURL("operator")}
	b := begin(t, cluster.Line())
	place := func(n int) {
		for range n {
			_, err := b.client.Place(b.ctx, e2e.Body("ada@example.com", "EUR", 1, "1.00"))
			require.NoError(t, err)
		}
	}
	place(3)
	b.conserved(t)
	for _, words := range [][]string{{"ls"}, {"info", "orders"}} {
		out := o.queue(words...)
		for _, name := range []string{"orders", "mailer", "audit", "loyalty"} {
			require.Contains(t, out, name, "%v", words)
		}
	}

	const backlog = 7
	o.queue("pause", "orders", "-c", "mailer")
	require.NotNil(t, o.consumer("mailer").PausedUntil)
	require.Contains(t, o.queue("ls"), "paused")
	place(backlog)
	require.Eventually(t, func() bool {
		entries, err := b.AuditEntries(b.ctx, "")
		return err == nil && len(entries) == 3+backlog && o.consumer("mailer").Depth == backlog
	}, deadline, 50*time.Millisecond, "the others go on and the depth grows")
	mails, err := b.mails.Mails()
	require.NoError(t, err)
	require.Len(t, mails, 3)
	require.Contains(t, o.queue("peek", "orders", "-c", "mailer", "-n", "1"), "orders.events")
	require.Equal(t, backlog, o.consumer("mailer").Depth, "a look changes nothing")
	require.Empty(t, b.Failing(t.Context()), "a pause by an operator is no fault of the mailer")
	o.queue("resume", "orders", "-c", "mailer")
	b.conserved(t)
	require.Eventually(t, func() bool {
		c := o.consumer("mailer")
		return c.Depth == 0 && c.InFlight == 0 && c.PausedUntil == nil
	}, deadline, 50*time.Millisecond)

	o.queue("create", "jobs", "-c", "worker")
	cmd := run(t, "suite", nil, "queue", "send", "jobs", "--nats", o.url)
	require.Zero(t, cmd.status, cmd.stderr) // an empty message from an empty standard input
	require.Zero(t, run(t, "suite", nil, "queue", "receive", "jobs", "-c", "worker", "--timeout", "10s", "--yes", "--nats", o.url).status)
	require.Equal(t, 3, run(t, "suite", nil, "queue", "receive", "jobs", "-c", "worker", "--timeout", "1s", "--yes", "--nats", o.url).status)
	o.queue("rm", "jobs", "--yes")
	require.NotContains(t, o.queue("ls"), "jobs")
}
