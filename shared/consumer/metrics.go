package consumer

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Results of events, as consumer_events_total counts them.
const (
	resultDone      = "done"
	resultDuplicate = "duplicate"
	resultEarly     = "early"
	resultWaiting   = "waiting"
	resultParked    = "parked"
	resultDead      = "dead"
	// With at-most-once delivery: acknowledged and then failed; and with an acknowledgement that nobody confirmed.
	resultLost        = "lost"
	resultUnconfirmed = "unconfirmed"
	resultSkipped     = "skipped" // dead, and its order went on; counted besides dead
)

type metrics struct {
	results   *prometheus.CounterVec
	batchSize prometheus.Histogram
	seconds   prometheus.Histogram
	age       prometheus.Histogram
	paused    prometheus.Gauge
	rows      *prometheus.GaugeVec
	oldest    *prometheus.GaugeVec
	gaps      prometheus.Gauge
	forwarded prometheus.Counter
	trips     prometheus.Counter
	conflicts prometheus.Counter
}

func newMetrics(r prometheus.Registerer, name string) (metrics, error) {
	label := prometheus.Labels{"consumer": name}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, ConstLabels: label, Buckets: buckets})
	}
	gauge := func(name, help string) prometheus.GaugeOpts {
		return prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: label}
	}
	m := metrics{
		results: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "consumer_events_total", Help: "Events by what became of them.", ConstLabels: label,
		}, []string{"result"}),
		trips: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "consumer_streaks_total", Help: "Times that failures in a row were taken for an outage.", ConstLabels: label,
		}),
		batchSize: histogram("consumer_batch_size", "Events in a group.", prometheus.ExponentialBuckets(1, 2, 11)),
		seconds:   histogram("consumer_group_seconds", "Time to settle a group that succeeded.", prometheus.ExponentialBuckets(0.001, 2, 16)),
		age:       histogram("consumer_event_age_seconds", "Age of events when they took effect.", prometheus.ExponentialBuckets(0.005, 4, 12)),
		paused:    prometheus.NewGauge(gauge("consumer_paused", "1 while the consumer is paused by an outage or a full table.")),
		rows:      prometheus.NewGaugeVec(gauge("consumer_parked_rows", "Parked events by state."), []string{"state"}),
		oldest:    prometheus.NewGaugeVec(gauge("consumer_oldest_seconds", "Age of the oldest parked event by state."), []string{"state"}),
		gaps:      prometheus.NewGauge(gauge("consumer_gap_orders", "Orders whose next event is lost.")),
		forwarded: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "consumer_forwarded_total", Help: "Events handed on to the next consumer of their route.", ConstLabels: label,
		}),
		conflicts: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "consumer_conflicts_total", Help: "Writes of this replica refused because another leads (mode single).", ConstLabels: label,
		}),
	}
	for _, result := range []string{resultDone, resultDuplicate, resultEarly, resultWaiting, resultParked, resultDead, resultSkipped, resultLost, resultUnconfirmed} {
		m.results.WithLabelValues(result)
	}
	if r == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.results, m.batchSize, m.seconds, m.age, m.paused, m.rows, m.oldest, m.gaps, m.forwarded, m.trips, m.conflicts} {
		if err := r.Register(c); err != nil {
			return m, err
		}
	}
	return m, nil
}

func (m metrics) events(result string, n int) {
	if n > 0 {
		m.results.WithLabelValues(result).Add(float64(n))
	}
}

func (m metrics) group(due []*item, size int, took time.Duration) {
	if size == 0 {
		return
	}
	m.batchSize.Observe(float64(size))
	m.seconds.Observe(took.Seconds())
	for _, i := range due {
		// The event's time comes from another host: clocks may disagree.
		m.age.Observe(max(0, time.Since(i.Time).Seconds()))
	}
}

func (m metrics) snapshot(s snapshot) {
	for _, state := range []string{stateWaiting, stateParked, stateDead} {
		m.rows.WithLabelValues(state).Set(float64(s.rows[state]))
		m.oldest.WithLabelValues(state).Set(s.oldest[state].Seconds())
	}
}
