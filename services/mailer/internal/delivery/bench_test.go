package delivery_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/migrations"
	"github.com/pillarbox/pillarbox/services/mailer/internal/delivery"
	"github.com/pillarbox/pillarbox/services/mailer/internal/letter"
	"github.com/pillarbox/pillarbox/services/mailer/internal/pickup"
	"github.com/pillarbox/pillarbox/shared/consumer"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/dispatch"
	"github.com/pillarbox/pillarbox/shared/logs"
)

// BenchmarkEffect measures the whole effect on the real disk and SQLite, and in
// the same run what the disk alone takes for a file of the same kind. ratio is
// mails per second to bare files per second.
func BenchmarkEffect(b *testing.B) {
	for _, c := range []struct {
		mode    dispatch.Mode
		workers int
		size    int
	}{
		{dispatch.ModeCompeting, 10, 1},
		{dispatch.ModeCompeting, 10, 10},
		{dispatch.ModeCompeting, 10, 100},
		{dispatch.ModeCompeting, 32, 100},
		{dispatch.ModeRoundRobin, 10, 100},
		{dispatch.ModeByKey, 10, 100},
		{dispatch.ModeSingle, 1, 100},
	} {
		b.Run(fmt.Sprintf("%s-%d/group-%d", c.mode, c.workers, c.size), func(b *testing.B) {
			bare := bareFile(b)
			r := realReplica(b, c.mode, c.workers)
			next := 0
			start := time.Now()
			mails := 0
			for b.Loop() {
				due := make([]consumer.Event, c.size)
				for i := range due {
					next++
					due[i] = event(fmt.Sprintf("order-%d", next), 1)
				}
				require.NoError(b, r.handle(due...))
				mails += c.size
			}
			rate := float64(mails) / time.Since(start).Seconds()
			b.ReportMetric(rate, "mails/s")
			b.ReportMetric(rate*bare.Seconds(), "ratio")
		})
	}
}

// bareFile is the time for one file: 4 KB written, fsynced, renamed, folder fsynced.
func bareFile(b *testing.B) time.Duration {
	b.Helper()
	const files = 100
	dir, data := b.TempDir(), make([]byte, 4096)
	start := time.Now()
	for i := range files {
		path := filepath.Join(dir, fmt.Sprint(i))
		file, err := os.Create(path)
		require.NoError(b, err)
		_, err = file.Write(data)
		require.NoError(b, err)
		require.NoError(b, file.Sync())
		require.NoError(b, file.Close())
		require.NoError(b, os.Rename(path, path+".eml"))
		folder, err := os.Open(dir)
		require.NoError(b, err)
		require.NoError(b, folder.Sync())
		require.NoError(b, folder.Close())
	}
	each := time.Since(start) / files
	b.ReportMetric(1/each.Seconds(), "bare-files/s")
	return each
}

func realReplica(b *testing.B, mode dispatch.Mode, workers int) *replica {
	b.Helper()
	dir := b.TempDir()
	url := "sqlite:" + filepath.Join(dir, "mailer.db")
	require.NoError(b, database.Migrate(b.Context(), url, migrations.Of("mailer"), database.Options{}))
	db, err := database.Open(url, database.Options{})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, db.Close()) })
	letters, err := letter.New(letter.Config{From: "Shop <shop@example.com>", Domain: "example.com"})
	require.NoError(b, err)
	metrics, err := delivery.NewMetrics(nil)
	require.NoError(b, err)
	r := &replica{t: b, ctx: b.Context(), db: db}
	r.box = pickup.New(pickup.Config{Dir: filepath.Join(dir, "pickup"), Mode: 0o640}, pickup.System{})
	r.folder = delivery.NewFolder(r.box, db)
	r.accepter = delivery.NewAccepter(db, metrics, logs.Discard())
	r.effect = delivery.NewEffect(strategy(b, mode, workers, letters), r.folder, r.accepter, metrics, logs.Discard(), time.Now)
	return r
}
