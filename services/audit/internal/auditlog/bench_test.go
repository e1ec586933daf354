package auditlog_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/migrations"
	"github.com/pillarbox/pillarbox/services/audit/internal/auditlog"
	"github.com/pillarbox/pillarbox/shared/consumer"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
)

// BenchmarkRecord writes groups of 100 new events of about 350 bytes.
func BenchmarkRecord(b *testing.B) {
	b.Run("sqlite", func(b *testing.B) { benchmark(b, "sqlite:"+filepath.Join(b.TempDir(), "bench.db"), "") })
	b.Run("postgres", func(b *testing.B) {
		url := os.Getenv(databasetest.EnvURL)
		if url == "" {
			b.Skipf("%s is not set", databasetest.EnvURL)
		}
		benchmark(b, url, "bench_"+strings.ToLower(rand.Text()[:12]))
	})
}

func benchmark(b *testing.B, url, schema string) {
	o := database.Options{Schema: schema}
	require.NoError(b, database.Migrate(b.Context(), url, migrations.Of("audit"), o))
	db, err := database.Open(url, o)
	require.NoError(b, err)
	b.Cleanup(func() {
		if schema != "" {
			require.NoError(b, db.Tx(context.Background(), func(ctx context.Context, tx *database.Tx) error {
				_, err := tx.ExecContext(ctx, "DROP SCHEMA "+schema+" CASCADE")
				return err
			}))
		}
		require.NoError(b, db.Close())
	})
	const size = 100
	n := 0
	for b.Loop() {
		b.StopTimer()
		group := make([]consumer.Event, size)
		for i := range group {
			n++
			group[i] = event(b, n, fmt.Sprintf("o%d", n), 1)
			group[i].ID = fmt.Sprintf("event-%09d", n)
		}
		b.StartTimer()
		require.NoError(b, db.Tx(b.Context(), func(ctx context.Context, tx *database.Tx) error {
			return auditlog.Record(ctx, tx, group)
		}))
	}
	b.ReportMetric(float64(size*b.N)/b.Elapsed().Seconds(), "events/s")
}
