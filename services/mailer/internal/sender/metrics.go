package sender

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pillarbox/pillarbox/services/mailer/internal/ledger"
)

// Results of attempts besides the ledger's states.
const (
	resultReturned = "returned" // says nothing about the mail; it is tried again at once
	resultLost     = "lost"     // begun by a replica that never ended it
)

// Metrics of one Sender.
type Metrics struct {
	results                                                     *prometheus.CounterVec
	dials                                                       prometheus.Counter
	connections, down, waiting, bytes, oldest, refused, unknown prometheus.Gauge
	duration                                                    prometheus.Histogram
}

// NewMetrics registers them, with nobody when r is nil.
func NewMetrics(r prometheus.Registerer) (*Metrics, error) {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	m := &Metrics{
		results: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "smtp_attempts_total", Help: "Attempts to hand over a mail by how they ended: accepted, queued (deferred), refused, unknown, returned (no fault of the mail), lost.",
		}, []string{"result"}),
		dials:       prometheus.NewCounter(prometheus.CounterOpts{Name: "smtp_connects_total", Help: "Connections made to the mail server."}),
		connections: gauge("smtp_connections", "Connections to the mail server that workers hold."),
		down:        gauge("smtp_down", "1 while the mail server takes no mails."),
		waiting:     gauge("queued_deliveries", "Deliveries that wait for the mail server."),
		bytes:       gauge("queued_event_bytes", "Bytes of the events of deliveries that wait for the mail server."),
		oldest:      gauge("oldest_queued_delivery_seconds", "Age of the oldest delivery that waits for the mail server."),
		refused:     gauge("refused_deliveries", "Deliveries that some recipient never gets."),
		unknown:     gauge("unknown_deliveries", "Deliveries of which nobody knows whether they were taken: a person has to decide."),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "smtp_send_seconds", Help: "Time of one mail, from MAIL to the answer to its end.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 18),
		}),
	}
	for _, state := range []string{ledger.Accepted, ledger.Queued, ledger.Refused, ledger.Unknown, resultReturned, resultLost} {
		m.results.WithLabelValues(state)
	}
	if r == nil {
		return m, nil
	}
	var problems error
	for _, c := range []prometheus.Collector{m.results, m.dials, m.connections, m.down, m.waiting, m.bytes, m.oldest, m.refused, m.unknown, m.duration} {
		problems = errors.Join(problems, r.Register(c))
	}
	return m, problems
}

func (m *Metrics) look(q ledger.Queue) {
	m.waiting.Set(float64(q.Waiting))
	m.bytes.Set(float64(q.Bytes))
	m.oldest.Set(q.Oldest.Seconds())
	m.refused.Set(float64(q.Refused))
	m.unknown.Set(float64(q.Unknown))
}
