package outbox

import (
	"context"
	"time"

	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// statusEvery bounds what the gauges cost: a backlog of a million rows takes
// a tenth of a second to count.
const statusEvery = 5 * time.Second

type metrics struct {
	published, batches, conflicts, refilled, errors, full prometheus.Counter
	replayed                                              prometheus.Counter
	waiting, oldest, dead, leader, refilling              prometheus.Gauge
	purgeBlocked, sequence                                prometheus.Gauge
	replays                                               prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg)
	counter := func(name, help string) prometheus.Counter {
		return f.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return f.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	return &metrics{
		published: counter("relay_published_total", "Events that the broker confirmed, refilled ones included."),
		batches:   counter("relay_batches_total", "Atomic batches that the broker confirmed."),
		conflicts: counter("relay_conflicts_total", "Writes of this replica refused because another leads."),
		refilled:  counter("relay_refilled_total", "Events published again because the broker lost them."),
		replayed:  counter("relay_replayed_total", "Events of the past published for new subscribers."),
		errors:    counter("relay_errors_total", "Passes of the relay that failed and are tried again."),
		full:      counter("relay_stream_full_total", "Publishes refused because the stream is at its limit."),
		waiting:   gauge("outbox_waiting_rows", "Events not yet confirmed by the broker."),
		oldest:    gauge("outbox_oldest_age_seconds", "Age of the oldest event not yet confirmed by the broker."),
		dead:      gauge("outbox_dead_rows", "Events that the broker refuses for ever."),
		leader:    gauge("relay_leader", "1 while this replica relays."),
		refilling: gauge("relay_refilling", "1 while this replica refills what the broker lost."),
		sequence:  gauge("relay_stream_sequence", "Last sequence of the stream as the relay saw it within the last second or two."),
		replays:   gauge("relay_replays", "Replays for new subscribers that are not handled yet, as the leader sees them."),
		purgeBlocked: gauge("relay_purge_blocked",
			"1 while a registered consumer that is missing or was reset stops the purge of the stream."),
	}
}

// watch keeps the backlog's gauges. A failed read leaves them as they are.
func (m *metrics) watch(ctx context.Context, db *database.DB) {
	tick := time.NewTicker(statusEvery)
	defer tick.Stop()
	for {
		if s, err := ReadStatus(ctx, db); err == nil {
			m.waiting.Set(float64(s.Waiting))
			m.oldest.Set(s.OldestAge.Seconds())
			m.dead.Set(float64(s.Dead))
		} else if ctx.Err() == nil {
			m.errors.Inc()
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
