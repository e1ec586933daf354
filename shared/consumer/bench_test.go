package consumer_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
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

// BenchmarkPoison compares the time from publication to effect of healthy orders with and without one poisoned order
// in a hundred, in interleaved runs, and prints the ratio of the median 99th percentiles.
func BenchmarkPoison(b *testing.B) {
	const runs, events, perTick = 5, 3000, 3
	run := func(b *testing.B, poisoned bool) time.Duration {
		url := "sqlite:" + filepath.Join(b.TempDir(), "bench.db")
		o := database.Options{}
		require.NoError(b, database.Migrate(b.Context(), url, migrations.Of("loyalty"), o))
		db, err := database.Open(url, o)
		require.NoError(b, err)
		defer func() { require.NoError(b, db.Close()) }()
		s := setup(b, db)
		s.config.Backoff, s.config.MaxBackoff, s.config.Sweep = time.Second, time.Hour, time.Second
		var mu sync.Mutex
		sent, took := map[string]time.Time{}, []time.Duration{}
		done := func(_ context.Context, g consumer.Group) error {
			mu.Lock()
			defer mu.Unlock()
			for _, e := range g.Due {
				took = append(took, time.Since(sent[e.ID]))
			}
			return nil
		}
		r := s.start(&staged{t: b, prepare: (&partner{}).check, done: done})
		defer r.stop()
		healthy := 0
		for n := 0; n < events; n += perTick {
			for i := range perTick {
				order := fmt.Sprint("good-", n+i)
				if poisoned && (n+i)%100 == 50 {
					order = fmt.Sprint("bad-", n+i)
				} else {
					healthy++
				}
				mu.Lock()
				sent[eventID(order, 1)] = time.Now()
				mu.Unlock()
				s.stream.publish(event(order, 1))
			}
			<-time.After(5 * time.Millisecond)
		}
		s.eventually(b, func() bool { mu.Lock(); defer mu.Unlock(); return len(took) >= healthy }, "all healthy orders")
		slices.Sort(took)
		return took[len(took)*99/100]
	}
	for b.Loop() {
		var with, without []time.Duration
		for range runs {
			without = append(without, run(b, false))
			with = append(with, run(b, true))
		}
		slices.Sort(with)
		slices.Sort(without)
		b.ReportMetric(float64(without[runs/2].Microseconds())/1000, "p99-ms-healthy")
		b.ReportMetric(float64(with[runs/2].Microseconds())/1000, "p99-ms-poisoned")
		b.ReportMetric(float64(with[runs/2])/float64(without[runs/2]), "ratio")
	}
}
