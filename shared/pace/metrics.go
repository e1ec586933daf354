package pace

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	passed, leases, leased, void prometheus.Counter
	waiting                      prometheus.Gauge
	wait                         prometheus.Histogram
}

func newMetrics(name string) *metrics {
	budget := prometheus.Labels{"budget": name}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: budget})
	}
	return &metrics{
		passed: counter("pace_passed_events_total", "Events that the budget let pass."),
		leases: counter("pace_leases_total", "Leases taken from the database."),
		leased: counter("pace_leased_events_total", "Events leased from the database."),
		void:   counter("pace_void_events_total", "Leased events that were not spent in time."),
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "pace_waiting_callers", Help: "Callers that wait for a share.", ConstLabels: budget,
		}),
		wait: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "pace_wait_seconds", Help: "Time that those waited who passed.", ConstLabels: budget,
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 11),
		}),
	}
}

// Describe implements prometheus.Collector.
func (p *Pacer) Describe(out chan<- *prometheus.Desc) {
	for _, c := range p.metrics.all() {
		c.Describe(out)
	}
}

// Collect implements prometheus.Collector.
func (p *Pacer) Collect(out chan<- prometheus.Metric) {
	for _, c := range p.metrics.all() {
		c.Collect(out)
	}
}

func (m *metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.passed, m.leases, m.leased, m.void, m.waiting, m.wait}
}
