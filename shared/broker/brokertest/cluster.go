package brokertest

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"
)

// Cluster starts three servers that form a JetStream cluster, in the process, stopped at the end of the test.
func Cluster(t testing.TB) []*server.Server {
	t.Helper()
	const nodes = 3
	var routes string
	ports := make([]int, nodes)
	for i := range ports {
		ports[i] = freePort(t)
		routes += fmt.Sprintf(",nats://127.0.0.1:%d", ports[i])
	}
	servers := make([]*server.Server, nodes)
	for i := range servers {
		s, err := server.NewServer(&server.Options{
			ServerName: fmt.Sprintf("node-%d", i), Host: "127.0.0.1", Port: server.RANDOM_PORT,
			Cluster:   server.ClusterOpts{Name: "test", Host: "127.0.0.1", Port: ports[i]},
			Routes:    server.RoutesFromStr(routes[1:]),
			JetStream: true, StoreDir: t.TempDir(), JetStreamMaxStore: maxStore, JetStreamMaxMemory: 64 << 20,
			NoSigs: true, NoLog: true,
		})
		require.NoError(t, err)
		t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
		s.Start()
		servers[i] = s
	}
	require.Eventually(t, func() bool {
		for _, s := range servers {
			if !s.JetStreamIsCurrent() || s.NumRoutes() == 0 {
				return false
			}
		}
		return true
	}, 30*time.Second, 20*time.Millisecond, "the cluster does not come up")
	return servers
}
