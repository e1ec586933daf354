package intake_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/migrations"
	"github.com/pillarbox/pillarbox/services/store/internal/intake"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
)

// BenchmarkIntake has 64 clients place orders, in groups and, for comparison, each in a
// transaction of its own with as many transactions at once as the pool has connections.
func BenchmarkIntake(b *testing.B) {
	for _, c := range []struct {
		name              string
		group, committers int
	}{{"group=100/committers=2", 100, 2}, {"group=100/committers=1", 100, 1}, {"group=1/committers=8", 1, 8}} {
		for _, engine := range []string{"postgres", "sqlite"} {
			b.Run(engine+"/"+c.name, func(b *testing.B) {
				db := benchDatabase(b, engine)
				d := newDesk(b, db, intake.Config{Group: c.group, Committers: c.committers})
				d.start()
				p := placement(b)
				var keys atomic.Int64
				b.SetParallelism(64 / 2) // times GOMAXPROCS
				b.ResetTimer()
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						k := keyed(fmt.Sprintf("k%d", keys.Add(1)), "f")
						if _, err := d.Place(b.Context(), p, k, intake.Trace{}, 300); err != nil {
							b.Error(err)
							return
						}
					}
				})
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "orders/s")
			})
		}
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
	require.NoError(b, database.Migrate(b.Context(), url, migrations.Of("store"), o))
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
