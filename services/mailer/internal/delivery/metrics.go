package delivery

import (
	"context"
	"errors"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pillarbox/pillarbox/services/mailer/internal/pickup"
	"github.com/pillarbox/pillarbox/shared/logs"
)

// Metrics of one mailer.
type Metrics struct {
	published, earlier, beside, dropped, removed prometheus.Counter
	staged, oldest                               prometheus.Gauge
	duration                                     prometheus.Histogram
}

// NewMetrics registers them, with nobody when r is nil.
func NewMetrics(r prometheus.Registerer) (*Metrics, error) {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	m := &Metrics{
		published: counter("mails_published_total", "Mails that appeared in the pickup folder."),
		earlier:   counter("mails_published_earlier_total", "Mails found published by an earlier attempt or another replica."),
		beside:    counter("mails_renamed_total", "Mails published under another name because a foreign file had theirs."),
		dropped:   counter("accepts_dropped_total", "Published deliveries left for the sweeper to mark."),
		removed:   counter("staged_files_removed_total", "Staged files without a row that the sweeper removed."),
		staged:    gauge("staged_deliveries", "Deliveries committed and not yet marked as published."),
		oldest:    gauge("oldest_staged_delivery_seconds", "Age of the oldest delivery not yet marked as published."),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "publish_seconds", Help: "Time to publish a group and make it durable.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14),
		}),
	}
	all := []prometheus.Collector{m.published, m.earlier, m.beside, m.dropped, m.removed, m.staged, m.oldest, m.duration}
	if r == nil {
		return m, nil
	}
	var problems error
	for _, collector := range all {
		problems = errors.Join(problems, r.Register(collector))
	}
	return m, problems
}

func (m *Metrics) count(ctx context.Context, log *slog.Logger, o pickup.Outcome) {
	m.published.Add(float64(o.Moved + o.Renamed))
	m.earlier.Add(float64(o.Earlier))
	m.beside.Add(float64(o.Renamed))
	if o.Renamed > 0 {
		log.ErrorContext(ctx, "a foreign file in the pickup folder has the name of a mail", logs.Count, o.Renamed)
	}
}
