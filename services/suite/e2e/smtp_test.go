package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/suite/e2e"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/smtptest"
)

// startMailServer starts one that takes everything, and returns the mailer's settings for it: its time-outs are
// short, so that the attempt of a dead replica is soon known to be lost.
func startMailServer(t *testing.T) (*smtptest.Server, []string) {
	t.Helper()
	server, err := smtptest.Start(smtptest.Config{})
	require.NoError(t, err)
	t.Cleanup(server.Close)
	return server, []string{"PILLARBOX_MAILER_TRANSPORT=" + server.URL("", "timeout=500ms")}
}

// mailed checks the promise of the SMTP transport: every acknowledged fact has one delivery, which the mail server
// has taken exactly once, or at most once when the ledger says that nobody knows; mails of one order came in version
// order. It returns how many are unknown.
func mailed(ctx context.Context, db *database.DB, server *smtptest.Server, truth *e2e.Truth) (unknown int, err error) {
	// The ledger first: what it calls accepted was taken before.
	states := map[string]string{}
	rows, err := db.Read().QueryContext(ctx, `SELECT order_id, version, state FROM deliveries`)
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	for rows.Next() {
		var order, state string
		var version int64
		if err := rows.Scan(&order, &version, &state); err != nil {
			return 0, err
		}
		states[fmt.Sprint(order, " v", version)] = state
	}
	if err := rows.Err(); err != nil {
		return 0, err
	}
	taken, last := map[string]int{}, map[string]string{}
	var problems []error
	for _, m := range server.Taken() {
		order, version := mailHeader(m, "Order"), mailHeader(m, "Version")
		name := order + " v" + version
		if taken[name]++; taken[name] > 1 {
			problems = append(problems, fmt.Errorf("%s was taken %d times", name, taken[name]))
		}
		if version <= last[order] && len(version) <= len(last[order]) {
			problems = append(problems, fmt.Errorf("%s came after v%s", name, last[order]))
		}
		last[order] = version
	}
	for _, f := range truth.Facts() {
		name := fmt.Sprint(f.Order, " v", f.Version)
		switch state, n := states[name], taken[name]; {
		case state == "accepted" && n == 1:
		case state == "unknown":
			unknown++
		default:
			problems = append(problems, fmt.Errorf("%s is %q and was taken %d times", name, state, n))
		}
	}
	return unknown, errors.Join(problems[:min(len(problems), 5)]...)
}

func mailHeader(m smtptest.Mail, name string) string {
	_, rest, _ := strings.Cut(string(m.Data), "\nX-Pillarbox-"+name+": ")
	value, _, _ := strings.Cut(rest, "\n")
	return value
}

// mailedUnder places load while do does harm, and waits until the promise holds.
func mailedUnder(t *testing.T, line e2e.Line, open func() *database.DB, server *smtptest.Server, seed uint64, do func(ctx context.Context)) (unknown int) {
	t.Helper()
	truth := &e2e.Truth{}
	client := e2e.NewClient(truth, line.Stores...)
	client.GiveUp = 2 * time.Minute
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	loaded := make(chan error, 1)
	go func() {
		loaded <- e2e.Load{Client: client, Workers: 6, Seed: seed, Pause: 60 * time.Millisecond}.Run(ctx)
	}()
	do(ctx)
	stop()
	require.NoError(t, <-loaded)
	require.Greater(t, truth.Count(), 100)
	db := open()
	defer func() { require.NoError(t, db.Close()) }()
	var err error
	require.Eventually(t, func() bool {
		unknown, err = mailed(t.Context(), db, server, truth)
		return err == nil
	}, 2*time.Minute, 100*time.Millisecond, "%v", &lazy{&err})
	t.Logf("%d facts, %d mails taken, %d unknown", truth.Count(), len(server.Taken()), unknown)
	return unknown
}

// lazy prints an error as it is when it is printed.
type lazy struct{ err *error }

func (l *lazy) String() string { return fmt.Sprint(*l.err) }

func openLedger(t *testing.T, url string) *database.DB {
	t.Helper()
	db, err := database.Open(url, database.Options{Schema: "mailer", MaxConns: 2})
	require.NoError(t, err)
	return db
}

// TestCrashesWithAMailServer kills the suite under load, at random and then at each step of a mail.
func TestCrashesWithAMailServer(t *testing.T) {
	t.Parallel()
	seed := crashSeed(t)
	server, env := startMailServer(t)
	suite := startSuiteProcess(t, env...)
	open := func() *database.DB { return openLedger(t, "sqlite:"+filepath.Join(suite.Dir, "mailer.db")) }
	mailedUnder(t, suite.Line(), open, server, seed, func(ctx context.Context) {
		report, err := e2e.Chaos{Processes: []*e2e.Process{suite.Process}, Seed: seed, Rounds: crashRounds(t, 5), Every: 700 * time.Millisecond}.Run(ctx)
		require.NoError(t, err)
		t.Log(report)
		for _, step := range smtpSteps {
			crashAt(t, ctx, suite.Process, step, 3, func() {})
		}
	})
}

// TestCrashesOfMailersWithAMailServer does the same to three mailers on PostgreSQL, and freezes some.
func TestCrashesOfMailersWithAMailServer(t *testing.T) {
	t.Parallel()
	seed := crashSeed(t)
	server, env := startMailServer(t)
	cluster := startCluster(t, 3, env...)
	open := func() *database.DB { return openLedger(t, cluster.DatabaseURL("mailer")) }
	mailedUnder(t, cluster.Line(), open, server, seed, func(ctx context.Context) {
		report, err := e2e.Chaos{Processes: cluster.Services["mailer"], Seed: seed, Rounds: crashRounds(t, 6), Freeze: 20, Every: 700 * time.Millisecond}.Run(ctx)
		require.NoError(t, err)
		t.Log(report)
		for _, step := range smtpSteps {
			crashAt(t, ctx, cluster.Services["mailer"][0], step, 1, func() {})
		}
	})
}
