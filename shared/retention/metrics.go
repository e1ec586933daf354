package retention

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	removed           *prometheus.CounterVec
	oldest, held      *prometheus.GaugeVec
	errors, conflicts prometheus.Counter
}

func newMetrics(r prometheus.Registerer, rules []Rule, more ...prometheus.Collector) (metrics, error) {
	counter := func(name, help string) prometheus.CounterOpts { return prometheus.CounterOpts{Name: name, Help: help} }
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, []string{"rule"})
	}
	m := metrics{
		removed:   prometheus.NewCounterVec(counter("retention_removed_total", "Old rows removed by this replica."), []string{"rule"}),
		oldest:    gauge("retention_oldest_seconds", "Age of the oldest row of a rule, where the leader runs."),
		held:      gauge("retention_held", "1 while a rule may not remove anything, where the leader runs; the log says why."),
		errors:    prometheus.NewCounter(counter("retention_errors_total", "Bites that failed.")),
		conflicts: prometheus.NewCounter(counter("retention_conflicts_total", "Bites refused because another replica leads.")),
	}
	for _, rule := range rules {
		m.removed.WithLabelValues(rule.Name)
	}
	if r == nil {
		return m, nil
	}
	for _, c := range append(more, m.removed, m.oldest, m.held, m.errors, m.conflicts) {
		if err := r.Register(c); err != nil {
			return m, err
		}
	}
	return m, nil
}

// resign: what the leader knew is for the next one to say.
func (m metrics) resign() {
	m.oldest.Reset()
	m.held.Reset()
}
