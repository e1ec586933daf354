package consumer_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pillarbox/pillarbox/migrations"
	"github.com/pillarbox/pillarbox/shared/consumer"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
	"github.com/stretchr/testify/require"
)

// BenchmarkGroups is one replica with two workers and groups of up to 100, three versions per order, an effect of one
// row per event: the time per event from a full broker (in memory) to the acknowledgement.
func BenchmarkGroups(b *testing.B) {
	b.Run("sqlite", func(b *testing.B) {
		benchmark(b, "sqlite:"+filepath.Join(b.TempDir(), "bench.db"), "")
	})
	b.Run("postgres", func(b *testing.B) {
		url := os.Getenv(databasetest.EnvURL)
		if url == "" {
			b.Skip("no PostgreSQL server")
		}
		benchmark(b, url, "bench_"+strings.ToLower(rand.Text()[:12]))
	})
}

func benchmark(b *testing.B, url, schema string) {
	o := database.Options{Schema: schema}
	require.NoError(b, database.Migrate(b.Context(), url, migrations.Of("loyalty"), o))
	db, err := database.Open(url, o)
	require.NoError(b, err)
	b.Cleanup(func() {
		if schema != "" {
			_, err := db.Read().ExecContext(context.Background(), "DROP SCHEMA "+schema+" CASCADE")
			require.NoError(b, err)
		}
		require.NoError(b, db.Close())
	})
	s := setup(b, db)
	s.config.Sweep = time.Second
	bodies := make([][]byte, b.N)
	for i := range bodies {
		bodies[i] = event(fmt.Sprintf("order-%d", i/3), i%3+1)
	}
	s.stream.publish(bodies...)
	b.ResetTimer()
	r := s.start(consumer.Apply(record))
	for acked := 0; acked < b.N; acked, _, _ = s.stream.counts() {
		<-time.After(time.Millisecond)
	}
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
	r.stop()
}
