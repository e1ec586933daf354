package e2e_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/suite/all"
	"github.com/pillarbox/pillarbox/services/suite/e2e"
	"github.com/pillarbox/pillarbox/shared/database/databasetest/postgres"
	"github.com/pillarbox/pillarbox/shared/doctor"
)

// patient is the environment of the services of a cluster, as "suite doctor" takes it.
func patient(c *e2e.Cluster) []string {
	env := []string{"PILLARBOX_NATS_MONITOR_URL=" + c.MonitorURL()}
	for _, name := range all.Names() {
		for _, entry := range c.Services[name][0].Env {
			if strings.HasPrefix(entry, "PILLARBOX_"+strings.ToUpper(name)+"_") {
				env = append(env, entry)
			}
		}
	}
	return env
}

// diagnosis is what "suite doctor --json" said.
type diagnosis struct {
	ran
	codes         []doctor.Code
	notes, unseen int
}

func examine(t *testing.T, env []string, args ...string) diagnosis {
	t.Helper()
	d := diagnosis{ran: run(t, "suite", env, append([]string{"doctor", "--json"}, args...)...)}
	for line := range strings.Lines(d.stdout) {
		var one struct {
			Kind string      `json:"kind"`
			Code doctor.Code `json:"code"`
		}
		require.NoError(t, json.Unmarshal([]byte(line), &one), line)
		switch one.Kind {
		case "finding":
			d.codes = append(d.codes, one.Code)
		case "note":
			d.notes++
		case "unseen":
			d.unseen++
		}
	}
	slices.Sort(d.codes)
	d.codes = slices.Compact(d.codes)
	return d
}

// onDisk skips where a folder's file system does not keep what it is told, which would be a finding.
func onDisk(t *testing.T) {
	t.Helper()
	magic, err := doctor.FileSystem(t.TempDir())
	require.NoError(t, err)
	if name, _ := doctor.Unfit(magic); name != "" {
		t.Skipf("NOT RUN: temporary files are on %s", name)
	}
}

// TestDoctorOfTheShippedConfiguration starts the separate services strictly, with the shipped roles, users and
// permissions, and finds nothing. Then one thing after the other is set wrong.
func TestDoctorOfTheShippedConfiguration(t *testing.T) {
	t.Parallel()
	onDisk(t)
	cluster := startCluster(t, 1, "PILLARBOX_STRICT=1")
	env := patient(cluster)
	d := examine(t, env)
	require.Zero(t, d.status, "%s%s", d.stdout, d.stderr)
	require.Zero(t, d.notes, d.stdout)
	require.Zero(t, d.unseen, d.stdout)

	nc, err := nats.Connect(cluster.NATSURL("operator"))
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	stream, err := js.Stream(t.Context(), "orders")
	require.NoError(t, err)
	was := stream.CachedInfo().Config
	edit := func(change func(*jetstream.StreamConfig)) func(*testing.T) func() {
		return func(t *testing.T) func() {
			config := was
			change(&config)
			_, err := js.UpdateStream(t.Context(), config)
			require.NoError(t, err)
			return func() {
				_, err := js.UpdateStream(t.Context(), was)
				require.NoError(t, err)
			}
		}
	}
	sql := func(do, undo string) func(*testing.T) func() {
		return func(t *testing.T) func() {
			require.NoError(t, cluster.SQL(t.Context(), do))
			return func() { require.NoError(t, cluster.SQL(t.Context(), undo)) }
		}
	}
	for _, c := range []struct {
		want  doctor.Code
		spoil func(*testing.T) (mend func())
	}{
		{doctor.StreamDiscardsOld, edit(func(s *jetstream.StreamConfig) { s.Discard = jetstream.DiscardOld })},
		{doctor.StreamExpires, edit(func(s *jetstream.StreamConfig) { s.MaxAge = 24 * time.Hour })},
		{doctor.StreamPerSubject, edit(func(s *jetstream.StreamConfig) { s.MaxMsgsPerSubject = 10 })},
		{doctor.DuplicateWindow, edit(func(s *jetstream.StreamConfig) { s.Duplicates = time.Second })},
		{doctor.DurableGivesUp, func(t *testing.T) func() {
			durable, err := js.Consumer(t.Context(), "orders", "audit-1")
			require.NoError(t, err)
			was := durable.CachedInfo().Config
			config := was
			config.MaxDeliver = 5
			_, err = js.UpdateConsumer(t.Context(), "orders", config)
			require.NoError(t, err)
			return func() {
				_, err := js.UpdateConsumer(t.Context(), "orders", was)
				require.NoError(t, err)
			}
		}},
		{doctor.PGSyncCommit, sql(`ALTER ROLE audit SET synchronous_commit = off`, `ALTER ROLE audit RESET synchronous_commit`)},
		{doctor.PGUnlogged, sql(`ALTER TABLE loyalty.lanes SET UNLOGGED`, `ALTER TABLE loyalty.lanes SET LOGGED`)},
		{doctor.RoleTooStrong, sql(`GRANT CREATE ON SCHEMA mailer TO mailer`, `REVOKE CREATE ON SCHEMA mailer FROM mailer`)},
		{doctor.RoleTooWeak, sql(`REVOKE INSERT ON store.orders FROM store`, `GRANT INSERT ON store.orders TO store`)},
		{doctor.SchemaAhead, sql(`INSERT INTO store.goose_db_version (version_id, is_applied) VALUES (99, TRUE)`,
			`DELETE FROM store.goose_db_version WHERE version_id = 99`)},
		{doctor.SchemaBroken, sql(`INSERT INTO audit.goose_db_version (version_id, is_applied) VALUES (1, FALSE)`,
			`DELETE FROM audit.goose_db_version WHERE version_id = 1 AND NOT is_applied`)},
		{doctor.FolderOpen, func(t *testing.T) func() {
			require.NoError(t, os.Chmod(cluster.Pickup(), 0o777))
			return func() { require.NoError(t, os.Chmod(cluster.Pickup(), 0o755)) }
		}},
	} {
		mend := c.spoil(t)
		d := examine(t, env)
		mend()
		require.Equal(t, []doctor.Code{c.want}, d.codes, d.stdout)
		require.Equal(t, 1, d.status)
	}
	require.Empty(t, examine(t, env).codes, "all is mended again")

	// The users' rights: the operator's are too many for a service.
	d = examine(t, env, "--nats-url", cluster.NATSURL("operator"), "--service", "loyalty")
	require.Equal(t, []doctor.Code{doctor.BrokerTooOpen}, d.codes, d.stdout)
	d = examine(t, slices.DeleteFunc(slices.Clone(env), func(e string) bool { return strings.Contains(e, "MONITOR") }))
	require.Zero(t, d.status, d.stdout)
	require.Equal(t, 1, d.notes, "a server's fsync cannot be seen without its monitor")
}

// TestStrictStartIsRefused on a database that does not keep what it confirms; without the setting it is a warning.
func TestStrictStartIsRefused(t *testing.T) {
	t.Parallel()
	onDisk(t)
	b, err := binaries()
	require.NoError(t, err)
	server, err := postgres.Start(t.Context(), postgres.Config{Durable: true, Settings: map[string]string{"full_page_writes": "off"}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	cluster, err := e2e.NewCluster(t.Context(), e2e.ClusterConfig{Dir: t.TempDir(), Binaries: b, Replicas: 1})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, cluster.Close()) })
	env := []string{
		"PILLARBOX_DATABASE_URL=" + server.URL(), "PILLARBOX_NATS_URL=" + cluster.NATSURL("operator"),
		"PILLARBOX_AUDIT_HTTP=127.0.0.1:0", "PILLARBOX_AUDIT_ADMIN=127.0.0.1:0",
	}
	r := run(t, "audit", append(env, "PILLARBOX_STRICT=1"))
	require.Equal(t, 1, r.status)
	require.Contains(t, r.stderr, "audit: run: not started (PILLARBOX_STRICT): the checks found PBX-503")
	for _, code := range []doctor.Code{doctor.PGFullPages, doctor.RoleTooStrong, doctor.BrokerTooOpen} { // also superuser and operator
		require.Equal(t, 1, strings.Count(r.stderr, "level=ERROR msg=\"unsafe installation\" service=audit code="+string(code)+" "), "%s: %s", code, r.stderr)
	}

	cmd := exec.Command(b.Dir+"/audit", "run")
	cmd.Env = env
	log := &lines{}
	cmd.Stderr = log
	require.NoError(t, cmd.Start())
	require.Eventually(t, func() bool {
		return strings.Contains(log.String(), "level=WARN msg=\"unsafe installation\" service=audit code=PBX-503")
	},
		deadline, 20*time.Millisecond)
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	require.NoError(t, cmd.Wait(), log.String())
}

// lines is what a program wrote, to be read while it writes.
type lines struct {
	mu   sync.Mutex // guards text
	text strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
