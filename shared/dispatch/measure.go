package dispatch

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Meter counts what goes through the handlers that it stands in front of.
type Meter struct {
	handled, failed prometheus.Counter
	seconds, age    prometheus.Histogram

	mu     sync.Mutex // guards tally
	tally  Tally
	recent recent
}

// Tally is what a Meter saw so far.
type Tally struct {
	Handled, Failed int64 // messages that ended well, and badly
	InFlight        int64
	First, Last     time.Time // begin of the first message, end of the last
}

// Elapsed is the time from the begin of the first message to the end of the last.
func (t Tally) Elapsed() time.Duration { return max(0, t.Last.Sub(t.First)) }

// Rate is messages per second over that time; 0 when there was none.
func (t Tally) Rate() float64 {
	if elapsed := t.Elapsed(); elapsed > 0 {
		return float64(t.Handled+t.Failed) / elapsed.Seconds()
	}
	return 0
}

// String is "processed N messages in T s", with the rate and what else there is to say.
func (t Tally) String() string {
	s := fmt.Sprintf("processed %d messages in %.2f s (%.0f/s)", t.Handled+t.Failed, t.Elapsed().Seconds(), t.Rate())
	if t.Failed > 0 {
		s += fmt.Sprintf(", %d failed", t.Failed)
	}
	if t.InFlight > 0 {
		s += fmt.Sprintf(", %d in flight", t.InFlight)
	}
	return s
}

// NewMeter registers the metrics of one handler, with nobody when r is nil.
func NewMeter(name string, r prometheus.Registerer) (*Meter, error) {
	m := &Meter{}
	label := prometheus.Labels{"handler": name}
	counter := func(result string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{
			Name: "dispatch_messages_total", Help: "Messages that a handler ended, by result.",
			ConstLabels: prometheus.Labels{"handler": name, "result": result},
		})
	}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, ConstLabels: label, Buckets: buckets})
	}
	gauge := func(name, help string, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: label}, value)
	}
	m.handled, m.failed = counter("done"), counter("failed")
	m.seconds = histogram("dispatch_seconds", "Time of one call of a handler.", prometheus.ExponentialBuckets(0.0005, 2, 16))
	m.age = histogram("dispatch_age_seconds", "Age of messages when a handler got them.", prometheus.ExponentialBuckets(0.005, 4, 12))
	all := []prometheus.Collector{
		m.handled, m.failed, m.seconds, m.age,
		gauge("dispatch_in_flight", "Messages that a handler has now.", func() float64 { return float64(m.Tally().InFlight) }),
		gauge("dispatch_rate", "Messages per second that a handler ended, over the last ten seconds.", m.rate),
	}
	if r == nil {
		return m, nil
	}
	for _, c := range all {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics of handler %s: %w", name, err)
		}
	}
	return m, nil
}

// Measure puts m in front of a handler. madeAt tells when a message was made;
// nil when nobody knows.
func Measure[T any](m *Meter, madeAt func(T) time.Time, next Handler[T]) Handler[T] {
	return func(ctx context.Context, message T) (err error) {
		start := m.begin(1)
		if madeAt != nil {
			m.age.Observe(age(start, madeAt(message)))
		}
		failed := 1 // what a panic leaves
		defer func() { m.end(start, 1, failed) }()
		if err = next(ctx, message); err == nil {
			failed = 0
		}
		return err
	}
}

// MeasureBatch puts m in front of a batch handler: messages are counted one by one, the time is that of the batch.
func MeasureBatch[T any](m *Meter, madeAt func(T) time.Time, next BatchHandler[T]) BatchHandler[T] {
	return func(ctx context.Context, messages []T) (errs []error) {
		start := m.begin(len(messages))
		if madeAt != nil {
			for _, message := range messages {
				m.age.Observe(age(start, madeAt(message)))
			}
		}
		failed := len(messages)
		defer func() { m.end(start, len(messages), failed) }()
		errs = next(ctx, messages)
		failed = 0
		for _, err := range errs {
			if err != nil {
				failed++
			}
		}
		return errs
	}
}

// Tally returns what m saw so far.
func (m *Meter) Tally() Tally {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.tally
}

func (m *Meter) begin(n int) time.Time {
	now := time.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.tally.First.IsZero() {
		m.tally.First = now
	}
	m.tally.InFlight += int64(n)
	return now
}

func (m *Meter) end(start time.Time, n, failed int) {
	now := time.Now()
	m.seconds.Observe(now.Sub(start).Seconds())
	if failed < n {
		m.handled.Add(float64(n - failed))
	}
	if failed > 0 {
		m.failed.Add(float64(failed))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tally.InFlight -= int64(n)
	m.tally.Handled += int64(n - failed)
	m.tally.Failed += int64(failed)
	m.tally.Last = now
	m.recent.add(now.Unix(), n)
}

// age is never negative: the message's time may come from another clock.
func age(now, madeAt time.Time) float64 { return max(0, now.Sub(madeAt).Seconds()) }

func (m *Meter) rate() float64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.recent.rate(time.Now().Unix())
}

// recent counts messages by second, for the last ten whole seconds.
type recent struct {
	second [window + 1]int64
	count  [window + 1]int
}

const window = 10

func (r *recent) add(second int64, n int) {
	i := second % int64(len(r.second))
	if r.second[i] != second {
		r.second[i], r.count[i] = second, 0
	}
	r.count[i] += n
}

// rate leaves out the second that is under way, or it would look slow.
func (r *recent) rate(now int64) float64 {
	sum := 0
	for i, second := range r.second {
		if second < now && second >= now-window {
			sum += r.count[i]
		}
	}
	return float64(sum) / window
}
