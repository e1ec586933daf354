package coalesce

import "github.com/prometheus/client_golang/prometheus"

// Repeats says how often a key came again while a request with it was under way.
type Repeats int

const (
	None   Repeats = iota // never: coalescing saved nothing
	Sparse                // one waited
	High                  // others were declined too

	kinds = int(High) + 1
)

// String is the name of r.
func (r Repeats) String() string { return [...]string{"none", "sparse", "high"}[r] }

// Stats are counts since the start. Each request is in one of the first seven,
// once it is processed, waits no more or is turned away.
type Stats struct {
	Processed uint64 // at once
	TookOver  uint64 // processed in place of a head that died
	Shared    uint64 // given the head's result
	Declined  uint64
	GaveUp    uint64
	Differed  uint64
	Full      uint64

	Keys   [kinds]uint64 // by Repeats: how often a key was under way, from its first request to its last
	Active int           // keys under way now
}

// Stats returns the counts.
func (g *Group[K, V]) Stats() Stats {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.stats
	s.Active = len(g.byKey)
	return s
}

// Describe implements prometheus.Collector.
func (g *Group[K, V]) Describe(out chan<- *prometheus.Desc) {
	requests, keys, active := g.descriptions()
	out <- requests
	out <- keys
	out <- active
}

// Collect implements prometheus.Collector.
func (g *Group[K, V]) Collect(out chan<- prometheus.Metric) {
	requests, keys, active := g.descriptions()
	s := g.Stats()
	count := func(d *prometheus.Desc, n uint64, label string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), label)
	}
	count(requests, s.Processed, "processed")
	count(requests, s.TookOver, "took_over")
	count(requests, s.Shared, "shared")
	count(requests, s.Declined, "declined")
	count(requests, s.GaveUp, "gave_up")
	count(requests, s.Differed, "differed")
	count(requests, s.Full, "full")
	for r, n := range s.Keys {
		count(keys, n, Repeats(r).String())
	}
	out <- prometheus.MustNewConstMetric(active, prometheus.GaugeValue, float64(s.Active))
}

func (g *Group[K, V]) descriptions() (requests, keys, active *prometheus.Desc) {
	group := prometheus.Labels{"group": g.config.Name}
	requests = prometheus.NewDesc("coalesce_requests_total",
		"Requests with a key, by what became of them.", []string{"outcome"}, group)
	keys = prometheus.NewDesc("coalesce_keys_total",
		"Keys that were under way, by how often they were repeated meanwhile.", []string{"repeats"}, group)
	active = prometheus.NewDesc("coalesce_active_keys", "Keys under way.", nil, group)
	return requests, keys, active
}
