package e2e_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/suite/all"
	"github.com/pillarbox/pillarbox/services/suite/e2e"
)

// needPooler skips where PgBouncer is missing; in CI that is a failure.
func needPooler(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("pgbouncer")
	if err != nil {
		require.Empty(t, os.Getenv("CI"), "pgbouncer is missing")
		t.Skip("NOT CHECKED: pgbouncer is missing, so nothing ran through a pooler")
	}
	return path
}

// startPooler puts a PgBouncer in transaction mode before the cluster's PostgreSQL. It has fewer connections to the
// server than each service has to it, so that no two transactions are sure of the same one.
func startPooler(t *testing.T, c *e2e.Cluster) (*e2e.Process, int) {
	t.Helper()
	program := needPooler(t)
	port, err := e2e.FreePort()
	require.NoError(t, err)
	dir, err := os.MkdirTemp("", "pillarbox-pooler-") // whose owner may be another account
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o755))
	_, server, _ := strings.Cut(c.DatabaseURL("x"), "@127.0.0.1:")
	server, _, _ = strings.Cut(server, "/")
	var users strings.Builder
	for _, service := range all.Names() {
		fmt.Fprintf(&users, "%q \"e2e\"\n%q \"e2e\"\n", service, service+"_owner")
	}
	config := fmt.Sprintf(`[databases]
pillarbox = host=127.0.0.1 port=%s dbname=pillarbox
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = scram-sha-256
auth_file = %s
pool_mode = transaction
default_pool_size = 4
max_client_conn = 500
server_login_retry = 1
`, server, port, filepath.Join(dir, "users.txt"))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "users.txt"), []byte(users.String()), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "pgbouncer.ini"), []byte(config), 0o644))
	args := []string{filepath.Join(dir, "pgbouncer.ini")}
	if os.Geteuid() == 0 { // as which it does not run
		args = append([]string{"-u", "nobody"}, args...)
	}
	pooler := &e2e.Process{Name: "pgbouncer", Path: program, Args: args, Log: filepath.Join(c.Config.Dir, "pgbouncer.log"), Ready: e2e.Dialable(port)}
	require.NoError(t, pooler.Run(t.Context()))
	t.Cleanup(func() { require.NoError(t, pooler.Kill()) })
	return pooler, port
}

// TestTransactionPooler runs the whole line through a pooler in transaction mode, migrations too, with one replica of
// each service consuming; services, the pooler and the server's sessions are killed.
func TestTransactionPooler(t *testing.T) {
	t.Parallel()
	needPooler(t)
	b, err := binaries()
	require.NoError(t, err)
	cluster, err := e2e.NewCluster(t.Context(), e2e.ClusterConfig{
		Dir: t.TempDir(), Binaries: b, Replicas: 2, Env: []string{"PILLARBOX_LOYALTY_MODE=single"},
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, cluster.Close())
		if t.Failed() {
			for _, p := range cluster.All() {
				showLog(t, p.Log)
			}
			showLog(t, filepath.Join(cluster.Config.Dir, "pgbouncer.log"))
		}
	})
	pooler, port := startPooler(t, cluster)
	for _, service := range all.Names() {
		prefix := "PILLARBOX_" + strings.ToUpper(service)
		through := func(role string) string {
			return fmt.Sprintf("postgres://%s:e2e@127.0.0.1:%d/pillarbox?sslmode=disable&pooler=transaction", role, port)
		}
		for _, p := range cluster.Services[service] {
			p.Env = append(p.Env, prefix+"_DATABASE_URL="+through(service), prefix+"_MIGRATE_URL="+through(service+"_owner"))
		}
	}
	require.NoError(t, cluster.Start(t.Context()))
	underLoad(t, cluster.Line(), crashSeed(t), func(ctx context.Context, facts func() int) {
		for _, service := range []string{"store", "mailer", "loyalty"} {
			grow(t, facts, 15)
			p := cluster.Services[service][0]
			require.NoError(t, p.Kill())
			require.NoError(t, p.Run(ctx))
		}
		grow(t, facts, 15)
		require.NoError(t, pooler.Kill())
		require.NoError(t, pooler.Run(ctx))
		grow(t, facts, 15)
		require.NoError(t, cluster.SQL(ctx, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'pillarbox' AND pid <> pg_backend_pid()"))
		grow(t, facts, 15)
	})
	super := as(t, cluster, "postgres")
	require.Equal(t, []string{"0"}, super.texts(t, `SELECT count(*)::text FROM pg_stat_activity WHERE datname = 'pillarbox'
		AND usename <> 'postgres' AND client_port IS NULL`))
	sessions := super.texts(t, `SELECT count(*)::text FROM pg_stat_activity WHERE datname = 'pillarbox' AND usename = 'mailer'`)
	require.Contains(t, []string{"1", "2", "3", "4"}, sessions[0], "the services did not go through the pooler")
	require.NoError(t, cluster.Stop())
}
