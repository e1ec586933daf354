package lease

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
)

// Office is what a leader does in a term, in this order.
type Office struct {
	// Inaugurate prepares; may be nil. With an error the term ends without more.
	Inaugurate func(ctx context.Context, term int64) error
	// Execute works until it is done or ctx ends: because Serve shall end, or because the lease cannot
	// be renewed in time (cause ErrLost).
	Execute func(ctx context.Context, term int64) error
	// HandOver finishes what is under way; may be nil. The lease is held and renewed until it returns, so it bounds
	// itself. Its ctx ends only when the lease is lost.
	HandOver func(ctx context.Context, term int64) error
}

// State is where a replica stands.
type State int32

// The states, in the order in which they follow one another.
const (
	Following    State = iota // another leads, or nobody
	Inaugurating              // the row is won
	Leading
	HandingOver // work under way is finished; the row is still held unless it was lost
)

// String is the state's name in metrics.
func (s State) String() string {
	return [...]string{"following", "inaugurating", "leading", "handing_over"}[s]
}

// State returns where this replica stands.
func (l *Lease) State() State { return State(l.state.Load()) }

func (l *Lease) enter(s State) {
	l.state.Store(int32(s))
	for other := Following; other <= HandingOver; other++ {
		l.metrics.state.WithLabelValues(other.String()).Set(0)
	}
	l.metrics.state.WithLabelValues(s.String()).Set(1)
}

type metrics struct {
	state       *prometheus.GaugeVec
	terms, lost prometheus.Counter
}

func newMetrics(name string) metrics {
	labels := prometheus.Labels{"lease": name}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels})
	}
	return metrics{
		state: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "lease_state", Help: "1 for the state in which this replica stands.", ConstLabels: labels,
		}, []string{"state"}),
		terms: counter("lease_terms_total", "Terms that this replica began to lead."),
		lost:  counter("lease_lost_total", "Terms of this replica that ended because the lease was not renewed in time."),
	}
}

func (m metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.state, m.terms, m.lost}
}

// Describe implements prometheus.Collector.
func (l *Lease) Describe(out chan<- *prometheus.Desc) {
	for _, c := range l.metrics.all() {
		c.Describe(out)
	}
}

// Collect implements prometheus.Collector.
func (l *Lease) Collect(out chan<- prometheus.Metric) {
	for _, c := range l.metrics.all() {
		c.Collect(out)
	}
}
