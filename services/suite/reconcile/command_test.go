package reconcile_test

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/suite/inprocess"
	"github.com/pillarbox/pillarbox/services/suite/reconcile"
	"github.com/pillarbox/pillarbox/shared/events"
	"github.com/pillarbox/pillarbox/shared/logs"
	"github.com/pillarbox/pillarbox/shared/outbox"
	contract "github.com/pillarbox/pillarbox/shared/reconcile"
)

// TestHealthySuite: exit status 0, running and stopped; a subscriber that gives no account is 2.
func TestHealthySuite(t *testing.T) {
	t.Parallel()
	p := &place{t: t, dir: filepath.Join(t.TempDir(), "data")}
	_, notes, status := run(t, nil, nil, "--data", t.TempDir())
	require.Equal(t, 2, status)
	require.NotEmpty(t, notes)

	p.start()
	text, _, status := run(t, nil, nil, "--data", p.dir)
	require.Equal(t, 0, status, text)
	require.Contains(t, text, "0 events of 0 orders, of all times; 0 wait in the outbox, the broker refuses 0")
	p.order(1)
	p.conserved(1)
	text, _, status = run(t, nil, nil, "--data", p.dir, "--since", "1h")
	require.Equal(t, 0, status)
	require.Contains(t, text, "1 event of 1 order, since ")
	require.Contains(t, text, "SUBSCRIBER  DONE\naudit       1\nloyalty     1\nmailer      1\nconserved: ")

	_, notes, status = run(t, nil, nil, "--data", p.dir, "--service", "fraud")
	require.Equal(t, 2, status)
	require.Contains(t, notes, "fraud could not be asked: no admin port that was asked has it")
	p.register("fraud")
	text, _, status = run(t, nil, nil, "--data", p.dir)
	require.Equal(t, 2, status)
	require.Contains(t, text, "not answered: fraud: it is registered with the store")
	_, _, status = run(t, nil, nil, "--data", p.dir, "--service", "audit", "--service", "mailer")
	require.Equal(t, 0, status)
	_, notes, status = run(t, nil, nil, "--admin", "127.0.0.1:1")
	require.Equal(t, 2, status)
	require.Contains(t, notes, "the store is not there")

	p.exec("store", 1, `DELETE FROM consumers WHERE name = 'fraud'`)
	p.stop()
	r, status := report(t, "--data", p.dir)
	require.Equal(t, 0, status)
	require.Len(t, r.Subscribers, 3)
}

func (p *place) register(name string) {
	p.t.Helper()
	attached, err := inprocess.Attach(p.t.Context(), p.dir, logs.Discard())
	require.NoError(p.t, err)
	defer func() { require.NoError(p.t, attached.Close()) }()
	require.NoError(p.t, outbox.Register(p.t.Context(), attached.Conn, events.StreamOrders, name, name+"-1"))
}

// TestWatcher shows what it found to Prometheus, and goes on while nobody answers.
func TestWatcher(t *testing.T) {
	t.Parallel()
	p := &place{t: t, dir: filepath.Join(t.TempDir(), "data")}
	p.start()
	p.order(1)
	p.conserved(1)
	p.exec("loyalty", 1, `DELETE FROM ledger`)

	stop := make(chan struct{})
	type end struct {
		out, notes string
		status     int
	}
	ended := make(chan end, 1)
	address := freeAddress(t)
	go func() {
		out, notes, status := run(t, stop, []time.Duration{}, "--data", p.dir, "--every", "10s", "--listen", address, "--json")
		ended <- end{out, notes, status}
	}()
	var metrics string
	require.Eventually(t, func() bool {
		metrics = scrape(address)
		return strings.Contains(metrics, `pillarbox_reconcile_findings{at="loyalty",kind="no-effect"} 1`)
	}, soon, tick, "%s", metrics)
	require.Contains(t, metrics, "pillarbox_reconcile_events 1\n")
	require.Contains(t, metrics, "pillarbox_reconcile_not_answered 0\n")
	require.NotContains(t, metrics, "pillarbox_reconcile_last_run_timestamp_seconds 0\n")
	close(stop)
	last := <-ended
	require.Equal(t, 0, last.status, last.notes)
	require.Contains(t, last.notes, "metrics at http://"+address+"/metrics")
	var r contract.Report
	require.NoError(t, json.Unmarshal([]byte(strings.SplitN(last.out, "\n", 2)[0]), &r))
	require.Equal(t, 1, r.Total())
}

// freeAddress is one that nobody listens on now.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	return listener.Addr().String()
}

func scrape(address string) string {
	request, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "http://"+address+"/metrics", nil)
	if err != nil {
		return err.Error()
	}
	answer, err := client.Do(request)
	if err != nil {
		return err.Error()
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

func TestFlags(t *testing.T) {
	t.Parallel()
	for line, problem := range map[string]string{
		"--data x --admin y": "two addresses",
		"--every 1s":         "at least 10s",
		"--listen :1":        "needs --every",
		"--since yesterday":  "neither a time",
	} {
		var cli struct {
			Reconcile reconcile.Command `cmd:""`
		}
		parser, err := kong.New(&cli)
		require.NoError(t, err)
		_, err = parser.Parse(append([]string{"reconcile"}, strings.Fields(line)...))
		require.ErrorContains(t, err, problem, line)
	}
}
