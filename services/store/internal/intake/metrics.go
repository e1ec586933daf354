package intake

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	events    *prometheus.CounterVec
	refused   *prometheus.CounterVec
	replayed  prometheus.Counter
	accepted  prometheus.Counter
	lost      *prometheus.CounterVec
	redone    prometheus.Counter
	groupSize prometheus.Histogram
	commit    prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer, waiting, unstored func() float64) (*metrics, error) {
	m := &metrics{
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "events_stored_total", Help: "Events committed with their order, by type.",
		}, []string{"type"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "intake_refused_total", Help: "Requests that were not stored for a reason that lies here, by reason.",
		}, []string{"reason"}),
		replayed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "idempotency_replayed_total", Help: "Answers given again for a known idempotency key.",
		}),
		accepted: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "intake_accepted_total", Help: "Orders that were answered 202 before they were stored.",
		}),
		lost: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "intake_accepted_lost_total", Help: "Orders that were answered 202 and not stored, by reason (refused, stopped).",
		}, []string{"reason"}),
		redone: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "intake_groups_redone_total", Help: "Groups whose requests were done again one by one.",
		}),
		groupSize: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "intake_group_requests", Help: "Requests in one transaction.",
			Buckets: []float64{1, 2, 5, 10, 20, 50, 100, 200, 500},
		}),
		commit: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "intake_commit_seconds", Help: "Duration of one transaction.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14),
		}),
	}
	queue := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "intake_queue_requests", Help: "Requests that wait for a transaction.",
	}, waiting)
	memory := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "intake_accepted_orders", Help: "Accepted orders that are only in memory.",
	}, unstored)
	var errs []error
	for _, c := range []prometheus.Collector{
		m.events, m.refused, m.replayed, m.accepted, m.lost, m.redone, m.groupSize, m.commit, queue, memory,
	} {
		errs = append(errs, reg.Register(c))
	}
	return m, errors.Join(errs...)
}

// refuse counts n orders or changes that were turned away.
func (m *metrics) refuse(err error, n int) { m.refused.WithLabelValues(reason(err)).Add(float64(n)) }

// reason is the metric label of an error.
func reason(err error) string {
	for _, known := range []struct {
		err  error
		text string
	}{
		{ErrBusy, "busy"}, {ErrBacklog, "backlog"}, {ErrStopping, "stopping"}, {ErrUnknown, "unknown"}, {ErrUnavailable, "unavailable"},
	} {
		if errors.Is(err, known.err) {
			return known.text
		}
	}
	return "other"
}
