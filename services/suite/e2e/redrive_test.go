package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/suite/e2e"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/events"
)

// redriveSteps: a redrive of dead letters.
var redriveSteps = []string{"loyalty.redrive_revived", "loyalty.redrive_tried"}

// TestCrashInARedrive kills the suite at each step of a redrive: it goes on where it was, each letter takes effect
// once, and what waits behind it follows.
func TestCrashInARedrive(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 2*deadline)
	defer cancel()
	suite := startSuiteProcess(t)
	require.NoError(t, suite.Stop())
	const letters = 15
	bury(t, ctx, suite.Dir, letters)
	started := tool(t, suite, "dead", "redrive", "--all", "--rate", "100", "--reason", "mended")
	require.EqualValues(t, letters, started["total"])
	for n, step := range redriveSteps {
		runInto(t, suite.Process, step, n+3)
	}
	require.NoError(t, suite.Run(ctx))
	var now map[string]any
	require.Eventually(t, func() bool {
		now = tool(t, suite, "dead", "status", started["id"].(string))
		return now["state"] == "done"
	}, deadline, 100*time.Millisecond)
	require.EqualValues(t, letters, now["done"])
	require.NoError(t, suite.Stop())
	db := openDB(t, suite.Dir, "loyalty")
	for query, want := range map[string]int{
		`SELECT count(*) FROM ledger`:                                 2 * letters,
		`SELECT count(*) FROM (SELECT DISTINCT event_id FROM ledger)`: 2 * letters,
		`SELECT count(*) FROM dead_letters`:                           0,
		`SELECT count(*) FROM parked`:                                 0,
	} {
		var got int
		require.NoError(t, db.Read().QueryRowContext(ctx, query).Scan(&got))
		require.Equal(t, want, got, query)
	}
}

// tool runs the suite's binary as an operator does and returns the object that it prints.
func tool(t *testing.T, s *e2e.SuiteProcess, args ...string) (answer map[string]any) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), s.Path, append(args, "--data", s.Dir, "--json", "--service", "loyalty")...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, "%v: %s", args, stderr.String())
	require.NoError(t, json.Unmarshal(out, &answer), string(out))
	return answer
}

func openDB(t *testing.T, dir, service string) *database.DB {
	t.Helper()
	db, err := database.Open("sqlite:"+filepath.Join(dir, service+".db"), database.Options{Schema: service})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

// bury leaves orders dead at version 1 at loyalty, with version 2 waiting behind.
func bury(t *testing.T, ctx context.Context, dir string, n int) {
	t.Helper()
	db, err := database.Open("sqlite:"+filepath.Join(dir, "loyalty.db"), database.Options{Schema: "loyalty"})
	require.NoError(t, err)
	require.NoError(t, db.Tx(ctx, func(ctx context.Context, tx *database.Tx) error {
		for o := range n {
			order := fmt.Sprintf("order-%02d", o)
			for version, state := range map[int]string{1: "dead", 2: "waiting"} {
				kind := map[int]string{1: "order.placed.v1", 2: "order.changed.v1"}[version]
				body := fmt.Sprintf(`{"specversion":"1.0","id":"%[1]s-%[2]d","source":"/pillarbox/store","type":"%[3]s","time":"2026-11-30T11:00:00Z",`+
					`"subject":"%[1]s","orderversion":%[2]d,"data":{"id":"%[1]s","version":%[2]d,"status":"placed",`+
					`"customer":{"email":"ada@example.com"},"currency":"EUR","items":[],"total":"9.00","placed_at":"2026-11-30T11:00:00Z"}}`, order, version, kind)
				_, err := tx.ExecContext(ctx, `INSERT INTO parked (event_id, order_id, version, state, event, attempts) VALUES ($1, $2, $3, $4, $5, 10)`,
					fmt.Sprint(order, "-", version), order, version, state, []byte(body))
				if err != nil || version == 2 {
					if err != nil {
						return err
					}
					continue
				}
				_, err = tx.ExecContext(ctx, `INSERT INTO dead_letters (id, event_id, order_id, version, body, reason, attempts) VALUES ($1, $2, $3, 1, $4, 'broken', 10)`,
					"event-"+order+"-1", order+"-1", order, []byte(body))
				if err != nil {
					return err
				}
			}
		}
		return nil
	}))
	require.NoError(t, db.Close())
}

// TestOperatorAtSeparateServices: the tool works through the admin ports of services on PostgreSQL.
func TestOperatorAtSeparateServices(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t, 1)
	line := cluster.Line()
	conn, err := nats.Connect(line.Publisher, nats.Token(line.Token))
	require.NoError(t, err)
	defer conn.Close()
	js, err := jetstream.New(conn)
	require.NoError(t, err)
	_, err = js.Publish(t.Context(), events.TopicOrders, []byte("noise"))
	require.NoError(t, err)

	b, err := binaries()
	require.NoError(t, err)
	suite, err := e2e.NewSuiteProcess(b, t.TempDir()) // only for its binary
	require.NoError(t, err)
	operate := func(args ...string) (found []map[string]any) {
		cmd := exec.CommandContext(t.Context(), suite.Path, append(args, "--json", "--as", "ada", "--admin", strings.Join(line.Admins, ","))...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		require.NoError(t, err, "%v: %s", args, stderr.String())
		for one := range strings.Lines(string(out)) {
			found = append(found, nil)
			require.NoError(t, json.Unmarshal([]byte(one), &found[len(found)-1]), one)
		}
		return found
	}
	var letters []map[string]any
	require.Eventually(t, func() bool { letters = operate("dead", "ls"); return len(letters) == 3 }, deadline, 100*time.Millisecond)
	id := letters[0]["id"].(string)
	for _, service := range []string{"mailer", "audit", "loyalty"} {
		require.Equal(t, "noise", operate("dead", "show", id, "--service", service)[0]["body"])
		operate("dead", "drop", id, "--service", service, "--reason", "noise", "--yes")
	}
	require.Empty(t, operate("dead", "ls"))
	require.Len(t, operate("dead", "actions"), 3)
	require.Empty(t, operate("parked", "ls"))
}
