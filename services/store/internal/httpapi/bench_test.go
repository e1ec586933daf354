package httpapi_test

import (
	"context"
	"crypto/rand"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/migrations"
	"github.com/pillarbox/pillarbox/services/store/internal/httpapi"
	"github.com/pillarbox/pillarbox/services/store/internal/intake"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
	"github.com/pillarbox/pillarbox/shared/logs"
)

// BenchmarkOrders places orders over HTTP: one by one by 1 and by 64 clients in each mode of the intake, and by one
// client in batches of a thousand. An operation is one order.
func BenchmarkOrders(b *testing.B) {
	for _, engine := range []string{"postgres", "sqlite"} {
		for _, c := range []struct {
			name    string
			mode    intake.Mode
			clients int
			batch   int // orders in a request
			status  int
		}{
			{"single/clients=1", intake.ModeSingle, 1, 1, 201},
			{"group/clients=1", intake.ModeGroup, 1, 1, 201},
			{"async/clients=1", intake.ModeAsync, 1, 1, 202},
			{"single/clients=64", intake.ModeSingle, 64, 1, 201},
			{"group/clients=64", intake.ModeGroup, 64, 1, 201},
			{"async/clients=64", intake.ModeAsync, 64, 1, 202},
			{"batch=1000/clients=1", intake.ModeGroup, 1, 1000, 200},
		} {
			b.Run(engine+"/"+c.name, func(b *testing.B) {
				base, stop := serve(b, benchDatabase(b, engine), c.mode)
				var left atomic.Int64
				left.Store(int64(b.N))
				b.ResetTimer()
				var clients sync.WaitGroup
				for range c.clients {
					clients.Go(func() {
						client := http.Client{Transport: &http.Transport{}}
						defer client.CloseIdleConnections()
						for {
							n := min(left.Add(-int64(c.batch))+int64(c.batch), int64(c.batch))
							if n <= 0 {
								return
							}
							if err := placeMany(&client, base, int(n), c.batch > 1, c.status); err != "" {
								b.Error(err)
								return
							}
						}
					})
				}
				clients.Wait()
				stop() // what was accepted is stored
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "orders/s")
			})
		}
	}
}

// placeMany sends n orders as one request, again while the store is busy, and says what went wrong.
func placeMany(client *http.Client, base string, n int, batch bool, status int) string {
	path, body := "/orders", tea
	if batch {
		path, body = "/orders/batch", "["+strings.Repeat(tea+",", n-1)+tea+"]"
	}
	for {
		answer, err := client.Post(base+path, "application/json", strings.NewReader(body))
		if err != nil {
			return err.Error()
		}
		text, err := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		switch {
		case err != nil:
			return err.Error()
		case answer.StatusCode == http.StatusServiceUnavailable: // accepted orders wait for the disk
		case answer.StatusCode != status || strings.Contains(string(text), `"refused":1`):
			return answer.Status + ": " + string(text)
		default:
			return ""
		}
	}
}

// serve runs the interface and its intake on a port until stop.
func serve(b *testing.B, db *database.DB, mode intake.Mode) (base string, stop func()) {
	b.Helper()
	reg := prometheus.NewRegistry()
	in, err := intake.New(intake.Config{Mode: mode}, intake.Deps{
		DB: db, Log: logs.Discard(), Registry: reg, Admit: func() error { return nil }, Wake: func() {}, Render: httpapi.RenderOrder,
	})
	require.NoError(b, err)
	handler, err := httpapi.New(httpapi.Config{Async: mode == intake.ModeAsync},
		httpapi.Deps{DB: db, Writer: in, Log: logs.Discard(), Registry: reg})
	require.NoError(b, err)
	server := httptest.NewServer(handler)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- in.Run(ctx) }()
	return server.URL, func() {
		server.Close()
		cancel()
		require.NoError(b, <-ended)
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
