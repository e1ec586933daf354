package e2e_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/pillarbox/pillarbox/services/suite/all"
	"github.com/pillarbox/pillarbox/services/suite/e2e"
)

// shares returns how many events each replica of the service has done.
func shares(t *testing.T, line e2e.Line, service string, replicas int) []float64 {
	t.Helper()
	first := slices.Index(all.Names(), service) * replicas
	done := make([]float64, replicas)
	for i := range done {
		var err error
		done[i], err = e2e.Line{Admins: line.Admins[first+i : first+i+1]}.Metric(t.Context(), "pillarbox_"+service+"_consumer_events_total", `result="done"`)
		require.NoError(t, err)
	}
	return done
}

// TestReplicasShareTheWork: three of everything, a thousand orders, every second
// one changed. Every replica does its part, and still each effect is there once
// and in order.
func TestReplicasShareTheWork(t *testing.T) {
	t.Parallel()
	const replicas, orders = 3, 1000
	line := startCluster(t, replicas).Line()
	b := begin(t, line)
	var group errgroup.Group
	group.SetLimit(16)
	for i := range orders {
		group.Go(func() error {
			o, err := b.client.Place(b.ctx, e2e.Body(fmt.Sprintf("customer%d@example.com", i%37), "EUR", 1+i%5, "2.99"))
			if err == nil && i%2 == 0 {
				_, err = b.client.Change(b.ctx, o, 2+i%5, "2.99")
			}
			return err
		})
	}
	require.NoError(t, group.Wait())
	require.Equal(t, orders+orders/2, b.truth.Count())
	b.conserved(t)
	for _, service := range []string{"mailer", "audit", "loyalty"} {
		done := shares(t, line, service, replicas)
		t.Logf("%s: %v", service, done)
		var sum float64
		for _, n := range done {
			sum += n
		}
		require.Equal(t, float64(b.truth.Count()), sum, "%s: the replicas together", service)
		for i, n := range done {
			require.GreaterOrEqual(t, n, 0.2*sum, "%s: replica %d of %v", service, i, done)
		}
	}
}
