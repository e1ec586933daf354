package reconcile

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"

	"github.com/pillarbox/pillarbox/shared/httpserver"
	"github.com/pillarbox/pillarbox/shared/logs"
	"github.com/pillarbox/pillarbox/shared/reconcile"
)

// gauges are what a watcher shows.
type gauges struct {
	registry *prometheus.Registry
	findings *prometheus.GaugeVec
	silent   prometheus.Gauge
	events   prometheus.Gauge
	last     prometheus.Gauge
}

func newGauges() *gauges {
	g := &gauges{
		registry: prometheus.NewRegistry(),
		findings: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "pillarbox_reconcile_findings", Help: "Things that the last look found broken, by kind and service.",
		}, []string{"kind", "at"}),
		silent: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "pillarbox_reconcile_not_answered", Help: "Who could not be asked in the last look.",
		}),
		events: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "pillarbox_reconcile_events", Help: "Events that the last look was about.",
		}),
		last: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "pillarbox_reconcile_last_run_timestamp_seconds", Help: "When the store was last asked with success; 0: never.",
		}),
	}
	g.registry.MustRegister(g.findings, g.silent, g.events, g.last)
	g.clear()
	return g
}

// clear leaves one series, so that no findings can be told from no watcher.
func (g *gauges) clear() {
	g.findings.Reset()
	g.findings.WithLabelValues("any", "any").Set(0)
}

func (g *gauges) show(r reconcile.Report) {
	g.clear()
	for _, f := range r.Findings {
		g.findings.WithLabelValues(string(f.Kind), f.Service).Set(float64(f.Count))
	}
	g.silent.Set(float64(len(r.Silent)))
	g.events.Set(float64(r.Events))
	g.last.Set(float64(r.At.Unix()))
}

// watch looks again and again until a signal.
func (c *Command) watch(ctx context.Context) error {
	g := newGauges()
	working, ctx := errgroup.WithContext(ctx)
	if c.Listen != "" {
		mux := http.NewServeMux()
		mux.Handle("GET /metrics", promhttp.HandlerFor(g.registry, promhttp.HandlerOpts{}))
		port, err := httpserver.Listen(httpserver.Config{Addr: c.Listen, LingerTimeout: -1}, mux, logs.New(c.Streams.Err, "text", slog.LevelWarn))
		if err != nil {
			return fmt.Errorf("metrics port: %w", err)
		}
		c.Streams.Note("metrics at http://%s/metrics", port.Addr())
		working.Go(func() error { return port.Run(ctx) })
	}
	working.Go(func() error { return c.rounds(ctx, g) })
	if err := working.Wait(); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

func (c *Command) rounds(ctx context.Context, g *gauges) error {
	tick := time.NewTicker(c.Every)
	defer tick.Stop()
	for {
		report, err := c.once(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			g.silent.Set(1)
			c.Streams.Note("%s: not looked: %s", time.Now().UTC().Format(time.RFC3339), err)
		default:
			g.show(report)
			if err := c.print(report); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
