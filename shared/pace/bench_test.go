package pace_test

import (
	"context"
	"crypto/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/migrations"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
	"github.com/pillarbox/pillarbox/shared/pace"
)

// BenchmarkWait is the cost of one event without a rate, from a share that is held, and
// with a lease from the database for each event, which is what a share saves.
func BenchmarkWait(b *testing.B) {
	b.Run("unlimited", func(b *testing.B) {
		p := newPacer(b, nil, pace.Config{Name: "x"})
		b.ReportAllocs()
		for b.Loop() {
			require.NoError(b, p.Wait(b.Context(), 1))
		}
	})
	for _, engine := range []string{"sqlite", "postgres"} {
		b.Run(engine+"/held", func(b *testing.B) {
			p := newPacer(b, benchDatabase(b, engine), pace.Config{Name: "x", Rate: 1000})
			p.Hold(1<<40, time.Hour)
			b.ReportAllocs()
			for b.Loop() {
				require.NoError(b, p.Wait(b.Context(), 1))
			}
		})
		b.Run(engine+"/lease", func(b *testing.B) {
			p := newPacer(b, benchDatabase(b, engine), pace.Config{Name: "x", Rate: 1_000_000, Burst: 1_000_000_000})
			require.NoError(b, p.Lease(b.Context(), 1)) // opens a connection
			for b.Loop() {
				p.Hold(0, 0)
				require.NoError(b, p.Lease(b.Context(), 1))
			}
		})
		// What callers of one replica get when they ask for one event each and the rate is no limit.
		b.Run(engine+"/waits", func(b *testing.B) {
			p := newPacer(b, benchDatabase(b, engine), pace.Config{Name: "x", Rate: 1_000_000, Burst: 1_000_000_000})
			for range 50 { // connections are open, leases have grown
				require.NoError(b, p.Wait(b.Context(), 1))
			}
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if err := p.Wait(context.Background(), 1); err != nil {
						b.Error(err)
					}
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
		})
	}
}

// benchDatabase is a file, or a schema that is dropped at the end.
func benchDatabase(b *testing.B, engine string) *database.DB {
	b.Helper()
	url, o := "sqlite:"+filepath.Join(b.TempDir(), "bench.db"), database.Options{}
	if engine == "postgres" {
		if url = os.Getenv(databasetest.EnvURL); url == "" {
			b.Skip("needs " + databasetest.EnvURL)
		}
		o.Schema = "bench_" + strings.ToLower(rand.Text()[:12])
	}
	require.NoError(b, database.Migrate(b.Context(), url, migrations.Of("mailer"), o))
	db, err := database.Open(url, o)
	require.NoError(b, err)
	b.Cleanup(func() {
		if o.Schema != "" {
			require.NoError(b, db.Tx(context.Background(), func(ctx context.Context, tx *database.Tx) error {
				_, err := tx.ExecContext(ctx, "DROP SCHEMA "+o.Schema+" CASCADE")
				return err
			}))
		}
		require.NoError(b, db.Close())
	})
	return db
}
