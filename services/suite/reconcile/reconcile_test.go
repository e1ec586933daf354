package reconcile_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/pillarbox/pillarbox/services/suite/all"
	"github.com/pillarbox/pillarbox/services/suite/inprocess"
	"github.com/pillarbox/pillarbox/services/suite/reconcile"
	"github.com/pillarbox/pillarbox/services/suite/terminal"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/events"
	"github.com/pillarbox/pillarbox/shared/logs"
	contract "github.com/pillarbox/pillarbox/shared/reconcile"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	soon = 30 * time.Second
	tick = 20 * time.Millisecond
)

var client = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// place is a folder on which a suite may run.
type place struct {
	t    *testing.T
	dir  string
	url  string // of the suite's API; empty when none runs
	stop func()
}

// start runs a suite on the folder until the test ends or stop is called.
func (p *place) start() {
	p.t.Helper()
	var settings struct {
		all.Settings `embed:""`
	}
	parser, err := kong.New(&settings)
	require.NoError(p.t, err)
	_, err = parser.Parse(nil)
	require.NoError(p.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	suite, err := inprocess.Start(ctx, inprocess.Config{Data: p.dir, HTTP: "127.0.0.1:0", Admin: "127.0.0.1:0", Settings: settings.Settings}, logs.Discard())
	require.NoError(p.t, err)
	p.url = "http://" + suite.HTTP()
	p.stop = func() {
		cancel()
		require.NoError(p.t, suite.Wait())
		p.stop = func() {}
	}
	p.t.Cleanup(func() { p.stop() })
}

// order places one and returns its id.
func (p *place) order(n int) string {
	p.t.Helper()
	answer, err := client.Post(p.url+"/orders", "application/json", strings.NewReader(fmt.Sprintf(`{"customer":{"email":"ada%d@example.com"},`+
		`"currency":"EUR","items":[{"sku":"TEA-01","quantity":2,"unit_price":"4.50"}]}`, n)))
	require.NoError(p.t, err)
	defer answer.Body.Close()
	require.Equal(p.t, http.StatusCreated, answer.StatusCode)
	var order struct {
		ID string `json:"id"`
	}
	require.NoError(p.t, json.NewDecoder(answer.Body).Decode(&order))
	return order.ID
}

// event is the first event of an order.
func (p *place) event(order string) (id string) {
	p.t.Helper()
	p.with("store", func(db *database.DB) {
		require.NoError(p.t, db.Read().QueryRowContext(context.Background(), `SELECT id FROM events WHERE order_id = $1`, order).Scan(&id))
	})
	return id
}

func (p *place) with(service string, do func(*database.DB)) {
	p.t.Helper()
	db, err := database.Open("sqlite:"+filepath.Join(p.dir, service+".db"), database.Options{Schema: service})
	require.NoError(p.t, err)
	do(db)
	require.NoError(p.t, db.Close())
}

// exec changes exactly so many rows by hand.
func (p *place) exec(service string, rows int64, query string, args ...any) {
	p.t.Helper()
	p.with(service, func(db *database.DB) {
		require.NoError(p.t, db.Tx(context.Background(), func(ctx context.Context, tx *database.Tx) error {
			result, err := tx.ExecContext(ctx, query, args...)
			if err != nil {
				return err
			}
			n, err := result.RowsAffected()
			if rows >= 0 {
				require.Equal(p.t, rows, n, query)
			}
			return err
		}))
	})
}

// run runs the command as its program would.
func run(t *testing.T, stop <-chan struct{}, pauses []time.Duration, args ...string) (out, notes string, status int) {
	t.Helper()
	var cli struct {
		Reconcile reconcile.Command `cmd:""`
	}
	parser, err := kong.New(&cli)
	require.NoError(t, err)
	var stdout, stderr bytes.Buffer
	cli.Reconcile.Streams = &terminal.Streams{In: strings.NewReader(""), Out: &stdout, Err: &stderr, Stop: stop}
	cli.Reconcile.Pauses = pauses
	parsed, err := parser.Parse(append([]string{"reconcile"}, args...))
	require.NoError(t, err)
	if err := parsed.Run(); err != nil {
		var exit interface{ ExitStatus() int }
		require.ErrorAs(t, err, &exit)
		status = exit.ExitStatus()
		stderr.WriteString(err.Error())
	}
	return stdout.String(), stderr.String(), status
}

// report runs it for its JSON.
func report(t *testing.T, args ...string) (r contract.Report, status int) {
	t.Helper()
	quick := []time.Duration{50 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond}
	out, notes, status := run(t, nil, quick, append(args, "--json")...)
	require.NoError(t, json.Unmarshal([]byte(out), &r), "%s%s", out, notes)
	return r, status
}

// conserved waits until a running suite has handled everything.
func (p *place) conserved(events int) {
	p.t.Helper()
	require.Eventually(p.t, func() bool {
		r, status := report(p.t, "--data", p.dir)
		done := status == 0 && r.Events == events && len(r.Subscribers) == 3
		for _, s := range r.Subscribers {
			done = done && s.Events[contract.Done] == events
		}
		return done
	}, soon, tick)
}

// named says what was found, as "kind service id", one per line.
func named(r contract.Report) map[string]int {
	found := map[string]int{}
	for _, f := range r.Findings {
		for _, i := range f.Items {
			id := i.Event
			if id == "" {
				id = i.Order
			}
			found[fmt.Sprintf("%s %s %s", f.Kind, f.Service, id)]++
		}
	}
	return found
}

// TestWhatWasRemovedByHandIsNamed takes one thing of each kind away and looks at the folder, then at the suite on it.
func TestWhatWasRemovedByHandIsNamed(t *testing.T) {
	t.Parallel()
	p := &place{t: t, dir: filepath.Join(t.TempDir(), "data")}
	p.start()
	var orders, ids []string
	for n := range 9 {
		orders = append(orders, p.order(n))
		ids = append(ids, p.event(orders[n]))
	}
	p.conserved(9)
	p.removeMessage(9)
	p.stop()
	r, status := report(t, "--data", p.dir)
	require.Equal(t, 1, status)
	orders = append(orders, "")
	p.with("store", func(db *database.DB) {
		var id string
		require.NoError(t, db.Read().QueryRowContext(t.Context(), `SELECT id, order_id FROM events ORDER BY seq DESC LIMIT 1`).Scan(&id, &orders[9]))
		ids = append(ids, id)
	})
	want := map[string]int{"lost audit " + ids[9]: 1}
	require.Equal(t, want, named(r), "a message of the stream")

	want["no-effect mailer "+ids[0]] = 1
	p.exec("mailer", 1, `DELETE FROM deliveries WHERE event_id = $1`, ids[0])
	want["lost audit "+ids[1]] = 1
	p.exec("audit", -1, `DROP TRIGGER entries_never_go`)
	p.exec("audit", 1, `DELETE FROM entries WHERE event_id = $1`, ids[1])
	want["no-effect loyalty "+ids[2]] = 1
	p.exec("loyalty", 1, `DELETE FROM ledger WHERE event_id = $1`, ids[2])
	want["lane loyalty "+ids[3]], want["lane mailer "+ids[3]] = 1, 1
	p.exec("loyalty", 1, `DELETE FROM lanes WHERE order_id = $1`, orders[3])
	p.exec("mailer", 1, `UPDATE lanes SET version = 0 WHERE order_id = $1`, orders[3])
	want["unproven mailer "+ids[4]] = 1
	p.unstage(ids[4])
	for _, service := range []string{"mailer", "audit", "loyalty"} {
		want["extra "+service+" "+ids[5]] = 1
	}
	want["versions store "+orders[5]] = 1
	p.exec("store", 1, `DELETE FROM events WHERE id = $1`, ids[5])
	want["twice audit "+ids[6]] = 1
	p.exec("audit", 1, `INSERT INTO dead_letters (id, event_id, body, reason) VALUES ($1, $2, 'x', 'x')`, "event-"+ids[6], ids[6])
	want["unpublished store lost-1"] = 1
	p.exec("store", 1, `INSERT INTO orders SELECT '00000000-0000-0000-0000-000000000000', version, status, customer_email, customer_name, locale,
		currency, items, total_minor, reference, placed_at, updated_at FROM orders WHERE id = $1`, orders[7])
	p.exec("store", 1, `INSERT INTO events (id, order_id, version, type, payload) VALUES ('lost-1', '00000000-0000-0000-0000-000000000000', 1, 'x', 'x')`)
	want["stray store ghost"] = 1
	p.exec("store", 1, `INSERT INTO outbox (seq, event_id, order_id, size) VALUES (999, 'ghost', 'ghost', 1)`)

	r, status = report(t, "--data", p.dir)
	require.Equal(t, 1, status)
	require.Equal(t, want, named(r))
	require.Empty(t, r.Silent)
	require.Equal(t, len(want), r.Total())

	r, status = report(t, "--data", p.dir, "--order", orders[0])
	require.Equal(t, 1, status)
	require.Equal(t, map[string]int{"no-effect mailer " + ids[0]: 1, "stray store ghost": 1}, named(r))
	r, _ = report(t, "--data", p.dir, "--service", "loyalty")
	require.Equal(t, []string{"loyalty"}, []string{r.Subscribers[0].Service})
	require.NotContains(t, named(r), "lost audit "+ids[1])
	require.Contains(t, named(r), "no-effect loyalty "+ids[2])
	r, status = report(t, "--data", p.dir, "--since", time.Now().Add(time.Hour).Format(time.RFC3339))
	require.Equal(t, 1, status, "a stray has no time")
	require.Equal(t, 0, r.Events)

	text, _, status := run(t, nil, []time.Duration{}, "--data", p.dir)
	require.Equal(t, 1, status)
	require.Contains(t, text, "no-effect at mailer: 1: ")
	require.Contains(t, text, "order "+orders[0]+" version 1 event "+ids[0])
}

// unstage makes of a mail one that is staged, and removes its file. No suite runs.
func (p *place) unstage(event string) {
	p.t.Helper()
	var delivery string
	p.with("mailer", func(db *database.DB) {
		require.NoError(p.t, db.Read().QueryRowContext(context.Background(), `SELECT id FROM deliveries WHERE event_id = $1`, event).Scan(&delivery))
	})
	require.NoError(p.t, os.Remove(filepath.Join(p.dir, "pickup", delivery+".eml")))
	p.exec("mailer", 1, `UPDATE deliveries SET state = 'staged', accepted_at = NULL, created_at = created_at - 60000000 WHERE event_id = $1`, event)
}

// TestAStagedFileThatIsGoneStaysNamed: the mailer has to take it for published, and remembers that nobody saw it.
func TestAStagedFileThatIsGoneStaysNamed(t *testing.T) {
	t.Parallel()
	p := &place{t: t, dir: filepath.Join(t.TempDir(), "data")}
	p.start()
	first, second := p.event(p.order(1)), p.event(p.order(2))
	p.conserved(2)
	p.stop()
	p.unstage(first)
	r, status := report(t, "--data", p.dir)
	require.Equal(t, 1, status)
	require.Equal(t, map[string]int{"unproven mailer " + first: 1}, named(r))
	// A mail that was published and not noted before a crash is none of these.
	p.exec("mailer", 1, `UPDATE deliveries SET state = 'staged', accepted_at = NULL, created_at = created_at - 60000000 WHERE event_id = $1`, second)
	r, _ = report(t, "--data", p.dir)
	require.Equal(t, 1, r.Total())

	p.start()
	require.Eventually(t, func() bool {
		r, status = report(t, "--data", p.dir)
		return status == 0 && len(r.Assumed) == 1
	}, soon, tick)
	require.Equal(t, contract.KindAssumed, r.Assumed[0].Kind)
	require.Len(t, r.Assumed[0].Items, 1)
	require.Equal(t, first, r.Assumed[0].Items[0].Event)
	require.Contains(t, r.Assumed[0].Items[0].Note, "Message-ID <")
	text, _, status := run(t, nil, nil, "--data", p.dir)
	require.Equal(t, 0, status, text)
	require.Contains(t, text, "ASSUMED DONE")
	require.Contains(t, text, "event "+first)
}

// removeMessage places an order that audit gets only when its message is gone from the stream.
func (p *place) removeMessage(n int) {
	p.t.Helper()
	ctx := p.t.Context()
	attached, err := inprocess.Attach(ctx, p.dir, logs.Discard())
	require.NoError(p.t, err)
	defer func() { require.NoError(p.t, attached.Close()) }()
	_, err = attached.Conn.JS.PauseConsumer(ctx, events.StreamOrders, "audit-1", time.Now().Add(time.Hour))
	require.NoError(p.t, err)
	p.order(n)
	require.Eventually(p.t, func() bool {
		r, status := report(p.t, "--data", p.dir)
		ok := status == 0 && r.Events == n+1
		for _, s := range r.Subscribers {
			ok = ok && (s.Events[contract.Done] == n+1 || s.Service == "audit" && s.Events[contract.Coming] == 1)
		}
		return ok
	}, soon, tick)
	stream, err := attached.Conn.JS.Stream(ctx, events.StreamOrders)
	require.NoError(p.t, err)
	require.NoError(p.t, stream.DeleteMsg(ctx, stream.CachedInfo().State.LastSeq))
	_, err = attached.Conn.JS.ResumeConsumer(ctx, events.StreamOrders, "audit-1")
	require.NoError(p.t, err)
	r, status := report(p.t, "--data", p.dir)
	require.Equal(p.t, 1, status)
	require.Equal(p.t, 1, r.Total())
}
