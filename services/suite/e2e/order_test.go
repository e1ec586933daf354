package e2e_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/suite/all"
	"github.com/pillarbox/pillarbox/services/suite/e2e"
	"github.com/pillarbox/pillarbox/shared/database/databasetest/postgres"
)

// layOutCluster is a cluster whose services do not run yet.
func layOutCluster(t *testing.T) *e2e.Cluster {
	t.Helper()
	b, err := binaries()
	require.NoError(t, err)
	c, err := e2e.NewCluster(t.Context(), e2e.ClusterConfig{
		Dir: t.TempDir(), Binaries: b, Replicas: 1, Env: []string{"PILLARBOX_LOG_LEVEL=info"},
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, c.Close())
		if t.Failed() {
			for _, p := range c.All() {
				showLog(t, p.Log)
			}
		}
	})
	return c
}

// service is one replica with its admin port.
type service struct {
	*e2e.Process
	name, admin string
}

func servicesOf(c *e2e.Cluster) []service {
	var found []service
	for i, name := range all.Names() {
		found = append(found, service{c.Services[name][0], name, c.Line().Admins[i]})
	}
	return found
}

// answer asks the admin port; status 0 means that nobody answers.
func (s service) answer(t *testing.T, path string) (status int, body string) {
	t.Helper()
	client := http.Client{Timeout: 10 * time.Second}
	defer client.CloseIdleConnections()
	answer, err := client.Get(s.admin + path)
	if err != nil {
		return 0, err.Error()
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	return answer.StatusCode, string(text)
}

// live waits until the service is live, and requires that it is ready or not.
func (s service) live(t *testing.T, ready bool) {
	t.Helper()
	require.Eventually(t, func() bool {
		status, _ := s.answer(t, "/live")
		return status == http.StatusOK
	}, deadline, 10*time.Millisecond, "%s is not live", s.name)
	status, body := s.answer(t, "/ready")
	require.Equal(t, ready, status == http.StatusOK, "%s: %d %s", s.name, status, body)
}

// waitLines waits until the service's log has two lines about what it waits for, and
// requires that they are clear and a few seconds apart.
func (s service) waitLines(t *testing.T, about string) {
	t.Helper()
	pattern := regexp.MustCompile(about)
	stamp := regexp.MustCompile(`time=(\S+)`)
	var times []time.Time
	require.Eventually(t, func() bool {
		text, err := os.ReadFile(s.Log)
		require.NoError(t, err)
		times = nil
		for line := range strings.Lines(string(text)) {
			if !pattern.MatchString(line) {
				continue
			}
			at, err := time.Parse(time.RFC3339, stamp.FindStringSubmatch(line)[1])
			require.NoError(t, err)
			require.NotContains(t, line, `\n`)
			times = append(times, at)
		}
		return len(times) >= 2
	}, deadline, 50*time.Millisecond, "%s: no two lines about %q", s.name, about)
	for i := range times[1:] {
		require.GreaterOrEqual(t, times[i+1].Sub(times[i]), 4*time.Second, s.name)
	}
}

// allReady waits for every service and returns how long that took.
func allReady(t *testing.T, services []service) time.Duration {
	t.Helper()
	begun := time.Now()
	for _, s := range services {
		require.Eventually(t, func() bool {
			status, _ := s.answer(t, "/ready")
			return status == http.StatusOK
		}, 30*time.Second, 10*time.Millisecond, "%s is not ready", s.name)
	}
	return time.Since(begun)
}

// TestServicesWaitForTheirServers starts the services with nothing there, then
// brings the servers one after another, and at last takes both away and back.
func TestServicesWaitForTheirServers(t *testing.T) {
	t.Parallel()
	c := layOutCluster(t)
	services := servicesOf(c)
	require.NoError(t, c.Postgres.Stop(postgres.Fast))
	require.NoError(t, c.NATS.Stop())
	for _, s := range services {
		require.NoError(t, s.Start())
	}
	for _, s := range services {
		s.live(t, false)
		s.waitLines(t, `msg="waiting for the database".*connection refused`)
	}
	require.NoError(t, c.Postgres.Start(t.Context()))
	for _, s := range services {
		about := `msg="subscription is waiting".*not connected to the broker`
		if s.name == "store" {
			about = `msg="relay waits and tries again".*not connected to the broker`
		}
		s.waitLines(t, about)
		s.live(t, s.name == "store") // who takes orders without a broker
	}
	require.NoError(t, c.NATS.Run(t.Context()))
	t.Logf("ready %s after the last server", allReady(t, services).Round(time.Millisecond))
	b := begin(t, c.Line())
	_, err := b.client.Place(b.ctx, e2e.Body("ada@example.com", "EUR", 1, "1.00"))
	require.NoError(t, err)
	b.conserved(t)

	require.NoError(t, c.NATS.Kill())
	require.NoError(t, c.Postgres.Stop(postgres.Immediate))
	for _, s := range services {
		require.Eventually(t, func() bool {
			status, _ := s.answer(t, "/ready")
			return status == http.StatusServiceUnavailable
		}, deadline, 10*time.Millisecond, "%s is ready without servers", s.name)
	}
	require.NoError(t, c.Postgres.Start(t.Context()))
	require.NoError(t, c.NATS.Run(t.Context()))
	t.Logf("ready again %s after both servers were restarted", allReady(t, services).Round(time.Millisecond))
	_, err = b.client.Place(b.ctx, e2e.Body("ada@example.com", "EUR", 2, "1.00"))
	require.NoError(t, err)
	b.conserved(t)
	require.NoError(t, c.Stop())
}

// TestSubscribersWaitForTheStore: without the store there is no stream to read.
func TestSubscribersWaitForTheStore(t *testing.T) {
	t.Parallel()
	c := layOutCluster(t)
	services := servicesOf(c)
	store, subscribers := services[0], services[1:]
	require.Equal(t, "store", store.name)
	for _, s := range subscribers {
		require.NoError(t, s.Start())
	}
	for _, s := range subscribers {
		s.waitLines(t, `msg="subscription is waiting".*no such stream: orders`)
		status, _ := s.answer(t, "/live")
		require.Equal(t, http.StatusOK, status)
	}
	require.NoError(t, store.Start())
	t.Logf("ready %s after the store's start", allReady(t, services).Round(time.Millisecond))
	b := begin(t, c.Line())
	_, err := b.client.Place(b.ctx, e2e.Body("ada@example.com", "EUR", 1, "1.00"))
	require.NoError(t, err)
	b.conserved(t)
	require.NoError(t, c.Stop())
}

// TestStopWhileWaiting: a service that waits for its servers stops at once when
// it is told to, and that is no failure.
func TestStopWhileWaiting(t *testing.T) {
	t.Parallel()
	c := layOutCluster(t)
	require.NoError(t, c.Postgres.Stop(postgres.Fast))
	for _, s := range servicesOf(c) {
		require.NoError(t, s.Start())
		s.live(t, false)
		require.NoError(t, s.Stop()) // status 0
	}
}

// TestNotReadyFromTheMomentOfTheStop: while a store finishes what clients have
// begun, its admin port says that nothing new shall be sent.
func TestNotReadyFromTheMomentOfTheStop(t *testing.T) {
	t.Parallel()
	c := layOutCluster(t)
	store := servicesOf(c)[0]
	require.NoError(t, store.Run(t.Context()))
	address := strings.TrimPrefix(c.Line().Stores[0], "http://")
	slow, err := net.Dial("tcp", address)
	require.NoError(t, err)
	defer slow.Close()
	body := `{"customer":{"email":"ada@example.com","name":"Ada"},"currency":"EUR","items":[{"sku":"TEA-01","name":"Green tea","quantity":1,"unit_price":"1.00"}]}`
	_, err = fmt.Fprintf(slow, "POST /orders HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body[:20])
	require.NoError(t, err)

	stopped := make(chan error, 1)
	go func() { stopped <- store.Stop() }()
	require.Eventually(t, func() bool {
		status, text := store.answer(t, "/ready")
		return status == http.StatusServiceUnavailable && strings.Contains(text, "stopping")
	}, 5*time.Second, time.Millisecond)
	status, _ := store.answer(t, "/live")
	require.Equal(t, http.StatusOK, status)
	require.Eventually(t, func() bool {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	}, 5*time.Second, time.Millisecond, "new connections are not refused")
	_, err = fmt.Fprint(slow, body[20:])
	require.NoError(t, err)
	answer, err := io.ReadAll(slow) // to the end that the store makes of the connection
	require.NoError(t, err)
	require.Contains(t, string(answer), "201 Created")
	require.NoError(t, <-stopped)
}
