package unhandled_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
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
	"github.com/pillarbox/pillarbox/services/suite/terminal"
	"github.com/pillarbox/pillarbox/services/suite/unhandled"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/logs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	soon = 15 * time.Second
	tick = 20 * time.Millisecond
)

// place is a folder with dead letters and parked events, on which a suite may run.
type place struct {
	t   *testing.T
	dir string
	url string // of the suite's admin port; empty when none runs
}

// each runs a test on a folder without a suite, through a running suite's folder, and at its admin address.
func each(t *testing.T, test func(t *testing.T, p *place, address []string)) {
	t.Helper()
	for _, kind := range []string{"folder", "suite", "admin"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			p := &place{t: t, dir: filepath.Join(t.TempDir(), "data")}
			stop := p.start()
			p.seed()
			switch kind {
			case "folder":
				stop()
				test(t, p, []string{"--data", p.dir})
			case "suite":
				test(t, p, []string{"--data", p.dir})
			case "admin":
				test(t, p, []string{"--admin", p.url})
			}
		})
	}
}

// start runs a suite on the folder until the test ends or stop is called.
func (p *place) start() (stop func()) {
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
	p.url = "http://" + suite.Admin()
	stop = func() {
		cancel()
		require.NoError(p.t, suite.Wait())
		p.url = ""
	}
	p.t.Cleanup(stop)
	return stop
}

// event is one of an order, as the store encodes it.
func event(order string, version int) string {
	kind, total := "order.changed.v1", "9.00"
	if version == 1 {
		kind = "order.placed.v1"
	}
	return fmt.Sprintf(`{"specversion":"1.0","id":"%s-%d","source":"/pillarbox/store","type":"%s","time":"2026-11-30T11:00:00Z",`+
		`"subject":"%[1]s","orderversion":%[2]d,"data":{"id":"%[1]s","version":%[2]d,"status":"placed","customer":{"email":"ada@example.com"},`+
		`"currency":"EUR","items":[],"total":"%[4]s","placed_at":"2026-11-30T11:00:00Z"}}`, order, version, kind, total)
}

// seed leaves at loyalty: orders a and b dead at version 1 with version 2 waiting behind, an order of which version 2
// never came, one that is tried again in an hour, and noise; at audit a letter.
func (p *place) seed() {
	p.t.Helper()
	p.exec("loyalty", `INSERT INTO lanes (order_id, version) VALUES ('gap', 1), ('later', 0)`)
	for _, order := range []string{"a", "b"} {
		p.exec("loyalty", `INSERT INTO dead_letters (id, event_id, order_id, version, subject, headers, body, reason, attempts, history)
			VALUES ($1, $2, $3, 1, 'orders.events', '{"Traceparent":["00-1"]}', $4, 'apply: bad points', 10,
			'[{"at":"2026-11-30T11:00:00Z","attempt":10,"error":"apply: bad points"}]')`,
			"event-"+order+"-1", order+"-1", order, []byte(event(order, 1)))
		p.park(order, 1, "dead", 0)
		p.park(order, 2, "waiting", 0)
	}
	p.park("gap", 4, "waiting", 0)
	p.park("later", 1, "parked", database.Micros(time.Now().Add(time.Hour)))
	p.exec("loyalty", `INSERT INTO dead_letters (id, headers, body, reason) VALUES ('message-9-ab', '{}', $1, 'not an event')`, []byte("no\x1bise\xff"))
	p.exec("audit", `INSERT INTO dead_letters (id, event_id, order_id, version, headers, body, reason, attempts)
		VALUES ('event-z-1', 'z-1', 'z', 1, '{}', $1, 'apply: disk', 3)`, []byte(event("z", 1)))
}

func (p *place) park(order string, version int, state string, next int64) {
	p.t.Helper()
	p.exec("loyalty", `INSERT INTO parked (event_id, order_id, version, state, event, attempts, next_attempt_at, last_error) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)`,
		fmt.Sprint(order, "-", version), order, version, state, []byte(event(order, version)), map[string]int{"waiting": 0, "parked": 4, "dead": 10}[state],
		next, map[string]string{"waiting": "", "parked": "busy", "dead": "apply: bad points"}[state])
}

func (p *place) exec(service, query string, args ...any) {
	p.t.Helper()
	p.with(service, func(db *database.DB) {
		require.NoError(p.t, db.Tx(context.Background(), func(ctx context.Context, tx *database.Tx) error {
			_, err := tx.ExecContext(ctx, query, args...)
			return err
		}))
	})
}

func (p *place) count(service, query string) (n int) {
	p.t.Helper()
	p.with(service, func(db *database.DB) {
		require.NoError(p.t, db.Read().QueryRowContext(context.Background(), query).Scan(&n))
	})
	return n
}

func (p *place) with(service string, do func(*database.DB)) {
	p.t.Helper()
	db, err := database.Open("sqlite:"+filepath.Join(p.dir, service+".db"), database.Options{Schema: service})
	require.NoError(p.t, err)
	do(db)
	require.NoError(p.t, db.Close())
}

// do runs a command; answer is what a person types, nil when nobody is there.
func (p *place) do(answer *string, args ...string) (out, notes string, err error) {
	p.t.Helper()
	var cli struct {
		Parked unhandled.Parked `cmd:""`
		Dead   unhandled.Dead   `cmd:""`
	}
	var outBuffer, errBuffer bytes.Buffer
	s := &terminal.Streams{In: strings.NewReader(""), Out: &outBuffer, Err: &errBuffer, Stop: make(chan struct{})}
	if answer != nil {
		s.Person, s.In = true, strings.NewReader(*answer)
	}
	cli.Parked.Streams, cli.Dead.Streams = s, s
	parser, err := kong.New(&cli)
	require.NoError(p.t, err)
	parsed, err := parser.Parse(args)
	if err == nil {
		err = parsed.Run()
	}
	return outBuffer.String(), errBuffer.String(), err
}

// command is a function that runs a command at an address and must succeed, and one that must be refused.
func (p *place) command(address []string) (ok func(args ...string) string, refused func(why string, args ...string)) {
	ok = func(args ...string) string {
		p.t.Helper()
		out, notes, err := p.do(nil, append(args, address...)...)
		require.NoError(p.t, err, "%v %s", args, notes)
		return out
	}
	refused = func(why string, args ...string) {
		p.t.Helper()
		_, _, err := p.do(nil, append(args, address...)...)
		require.ErrorContains(p.t, err, why, "%v", args)
	}
	return ok, refused
}

func objects(t *testing.T, out string) (found []map[string]any) {
	t.Helper()
	for line := range strings.Lines(out) {
		var one map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &one), line)
		found = append(found, one)
	}
	return found
}

func TestParkedCommands(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, p *place, address []string) {
		ok, refused := p.command(address)
		list := ok("parked", "ls")
		require.Contains(t, list, "versions 2 to 3 never came")
		require.Contains(t, list, "waits for version 1")
		require.Contains(t, list, "busy")
		require.Len(t, objects(t, ok("parked", "ls", "--json")), 6)
		require.Len(t, objects(t, ok("parked", "ls", "--json", "--state", "dead", "--service", "loyalty")), 2)
		require.Len(t, objects(t, ok("parked", "ls", "--json", "--order", "gap")), 1)
		refused("state must be", "parked", "ls", "--state", "odd")
		refused("no service", "parked", "ls", "--service", "store")
		show := ok("parked", "show", "later")
		require.Contains(t, show, `"id":"later-1"`)
		require.Contains(t, show, "next attempt  in 59m")
		refused("nothing of order", "parked", "show", "nobody")

		refused("give an order", "parked", "retry")
		refused(`nothing of "nobody" is parked`, "parked", "retry", "nobody")
		refused(`nothing of "event-0" is parked`, "parked", "retry", "--event", "event-0")
		require.Contains(t, ok("parked", "retry", "later", "--service", "loyalty", "--as", "ada", "--reason", "mended"), "1 events are due now")
		require.Contains(t, ok("dead", "actions"), "mended")

		refused("needs --yes", "parked", "skip", "gap", "--reason", "lost with the old database")
		require.Equal(t, 1, p.count("loyalty", `SELECT version FROM lanes WHERE order_id = 'gap'`))
		require.Contains(t, ok("parked", "skip", "gap", "--reason", "lost with the old database", "--yes", "--as", "ada"), "versions 2 to 3 of order gap skipped")
		require.GreaterOrEqual(t, p.count("loyalty", `SELECT version FROM lanes WHERE order_id = 'gap'`), 3)
		if p.url == "" {
			p.start() // what was asked for happens when the suite runs
		}
		require.Eventually(t, func() bool {
			return p.count("loyalty", `SELECT count(*) FROM ledger WHERE order_id IN ('gap', 'later')`) == 2
		}, soon, tick)
		actions := objects(t, ok("dead", "actions", "--json", "--service", "loyalty"))
		require.Equal(t, "ada skip lost with the old database", fmt.Sprint(actions[0]["who"], " ", actions[0]["action"], " ", actions[0]["reason"]))
	})
}

func TestGapIsFilledFromTheStore(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, p *place, address []string) {
		ok, refused := p.command(address)
		refused("no version 2", "parked", "fill", "gap")
		refused("misses no version", "parked", "fill", "later")
		for _, v := range []int{2, 3} {
			p.exec("store", `INSERT INTO events (id, order_id, version, type, payload) VALUES ($1, 'gap', $2, 'order.changed.v1', $3)`,
				fmt.Sprint("gap-", v), v, []byte(event("gap", v)))
		}
		require.Contains(t, ok("parked", "fill", "gap", "--reason", "the stream was lost"), "loyalty: versions 2 to 3 of order gap handed over")
		if p.url == "" {
			p.start()
		}
		require.Eventually(t, func() bool { return p.count("loyalty", `SELECT count(*) FROM ledger WHERE order_id = 'gap'`) == 3 }, soon, tick)
		require.Equal(t, 4, p.count("loyalty", `SELECT version FROM lanes WHERE order_id = 'gap'`))
		require.Contains(t, ok("dead", "actions"), "the stream was lost")
	})
}

func TestDeadCommands(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, p *place, address []string) {
		ok, refused := p.command(address)
		require.Len(t, objects(t, ok("dead", "ls", "--json")), 4)
		require.Len(t, objects(t, ok("dead", "ls", "--json", "--limit", "1")), 2, "one of each service")
		require.Len(t, objects(t, ok("dead", "ls", "--json", "--matching", "POINTS")), 2)
		require.Len(t, objects(t, ok("dead", "ls", "--json", "--order", "a", "--since", "1h")), 1)
		require.Empty(t, objects(t, ok("dead", "ls", "--json", "--since", "2100-01-01T00:00:00Z")))
		require.Contains(t, ok("dead", "ls"), "held")
		show := ok("dead", "show", "event-a-1")
		for _, part := range []string{"apply: bad points", "Traceparent: 00-1", `"id":"a-1"`, "attempt 10", "held"} {
			require.Contains(t, show, part)
		}
		require.Contains(t, ok("dead", "show", "message-9-ab"), "bm8baXNl/w==", "bytes that are no text")
		refused("no dead letter", "dead", "show", "event-a-9")

		refused("needs --yes", "dead", "drop", "event-b-1", "--reason", "test data")
		no := "no\n"
		_, _, err := p.do(&no, append([]string{"dead", "drop", "event-b-1", "--reason", "test data"}, address...)...)
		require.ErrorContains(t, err, "not confirmed")
		require.Equal(t, 3, p.count("loyalty", `SELECT count(*) FROM dead_letters`))
		ok("dead", "drop", "event-b-1", "message-9-ab", "--reason", "test data", "--yes")
		require.Equal(t, 1, p.count("loyalty", `SELECT count(*) FROM dead_letters`))

		refused("name letters", "dead", "redrive")
		refused("no dead letter matches", "dead", "redrive", "--order", "nobody")
		dry := objects(t, ok("dead", "redrive", "--all", "--dry-run", "--json"))
		require.Len(t, dry, 2)
		require.Equal(t, "dry run", dry[0]["state"])
		require.Zero(t, p.count("loyalty", `SELECT count(*) FROM redrives`))
		running := p.url != ""
		args := []string{"dead", "redrive", "--all", "--rate", "100", "--json", "--reason", "mended"}
		if running {
			args = append(args, "--watch")
		}
		started := objects(t, ok(args...))
		require.Len(t, started, 2)
		if !running {
			require.Equal(t, "running", started[0]["state"])
			refused("nothing to watch", "dead", "redrive", "--all", "--watch")
			p.start()
		}
		require.Eventually(t, func() bool {
			for _, r := range objects(t, ok("dead", "status", "--json")) {
				if r["state"] != "done" {
					return false
				}
			}
			return p.count("loyalty", `SELECT count(*) FROM ledger WHERE order_id = 'a'`) == 2 && p.count("audit", `SELECT count(*) FROM entries WHERE order_id = 'z'`) == 1
		}, soon, tick)
		require.Equal(t, 1, p.count("loyalty", `SELECT count(*) FROM ledger WHERE order_id = 'b'`), "version 1 was dropped, version 2 took effect")
		require.Empty(t, objects(t, ok("dead", "ls", "--json")))
		id := started[0]["id"].(string)
		require.Contains(t, ok("dead", "status", id), "done")
		refused("is over", "dead", "cancel", id)
		refused("no redrive", "dead", "cancel", "redrive-none")
		require.Contains(t, ok("dead", "actions"), "redrive ended")
	})
}

func TestARedriveIsCancelled(t *testing.T) {
	t.Parallel()
	p := &place{t: t, dir: filepath.Join(t.TempDir(), "data")}
	stop := p.start()
	p.seed()
	stop() // nothing begins before the cancellation
	ok, refused := p.command([]string{"--data", p.dir})
	id := objects(t, ok("dead", "redrive", "--order", "a", "--service", "loyalty", "--json"))[0]["id"].(string)
	refused("is running", "dead", "redrive", "--order", "b", "--service", "loyalty")
	require.Contains(t, ok("dead", "cancel", id, "--reason", "too early"), "cancelled")
	require.Contains(t, ok("dead", "status", id), "too early")
}

// TestAServiceThatRefusesStopsNoOther: noise on the topic is a dead letter everywhere, and can be redriven nowhere.
func TestAServiceThatRefusesStopsNoOther(t *testing.T) {
	t.Parallel()
	p := &place{t: t, dir: filepath.Join(t.TempDir(), "data")}
	p.start()
	p.seed()
	p.exec("audit", `DELETE FROM dead_letters`)
	p.exec("audit", `INSERT INTO dead_letters (id, headers, body, reason) VALUES ('message-9-ab', '{}', $1, 'not an event')`, []byte("noise"))
	out, _, err := p.do(nil, "dead", "redrive", "--all", "--rate", "100", "--watch", "--json", "--data", p.dir)
	require.ErrorContains(t, err, "audit: refused: nothing can be redriven: message-9-ab")
	started := objects(t, out)
	require.Len(t, started, 1)
	require.Equal(t, "loyalty done", fmt.Sprint(started[0]["service"], " ", started[0]["state"]))
	ok, _ := p.command([]string{"--data", p.dir})
	require.Contains(t, ok("dead", "actions", "--service", "audit"), "nothing can be redriven")
}

func TestAddresses(t *testing.T) {
	t.Parallel()
	p := &place{t: t, dir: filepath.Join(t.TempDir(), "data")}
	_, refused := p.command([]string{"--data", p.dir})
	refused("there is no folder", "parked", "ls")
	require.NoError(t, os.Mkdir(p.dir, 0o755))
	refused("no service has run", "parked", "ls")
	_, refused = p.command([]string{"--admin", "127.0.0.1:1"})
	refused("connection refused", "dead", "ls")
	_, refused = p.command([]string{"--admin", "127.0.0.1:1", "--data", p.dir})
	refused("two addresses", "dead", "ls")
}
