package dispatch_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/shared/dispatch"
)

func TestMeterTells(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		m, err := dispatch.NewMeter("mail", registry)
		require.NoError(t, err)
		require.Equal(t, "processed 0 messages in 0.00 s (0/s)", m.Tally().String())
		<-time.After(time.Second) // what was before the first message does not count
		handle := dispatch.Measure(m, func(made time.Time) time.Time { return made }, func(context.Context, time.Time) error {
			require.EqualValues(t, 1, m.Tally().InFlight)
			<-time.After(500 * time.Millisecond)
			return nil
		})
		for range 9 {
			require.NoError(t, handle(t.Context(), time.Now().Add(-20*time.Second)))
		}
		bad := dispatch.Measure(m, nil, func(_ context.Context, broken bool) error {
			if broken {
				panic("broken")
			}
			return errBoom
		})
		require.Error(t, bad(t.Context(), false))
		require.Panics(t, func() { _ = bad(t.Context(), true) })
		<-time.After(time.Hour) // nor does what comes after the last
		tally := m.Tally()
		require.Equal(t, "processed 11 messages in 4.50 s (2/s), 2 failed", tally.String())
		require.Equal(t, []int64{9, 2, 0}, []int64{tally.Handled, tally.Failed, tally.InFlight})

		for metric, want := range map[[2]string]float64{
			{"dispatch_messages_total", "done"}:   9,
			{"dispatch_messages_total", "failed"}: 2,
			{"dispatch_in_flight", ""}:            0,
			{"dispatch_seconds", ""}:              11,
			{"dispatch_age_seconds", ""}:          9,
		} {
			require.InDelta(t, want, value(t, registry, metric[0], metric[1]), 0, metric)
		}
	})
}

func TestMeterRateIsThatOfTheLastTenSeconds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		m, err := dispatch.NewMeter("mail", registry)
		require.NoError(t, err)
		handle := dispatch.MeasureBatch(m, func(int) time.Time { return time.Now() }, dispatch.Each(func(_ context.Context, n int) error {
			if n < 0 {
				return errBoom
			}
			return nil
		}))
		for range 30 {
			require.Len(t, handle(t.Context(), []int{1, -1, 1, 1, 1}), 5)
			<-time.After(time.Second)
		}
		require.InDelta(t, 5, value(t, registry, "dispatch_rate", ""), 0.01)
		<-time.After(5 * time.Second)
		require.InDelta(t, 2.5, value(t, registry, "dispatch_rate", ""), 0.6)
		<-time.After(time.Minute)
		require.Zero(t, value(t, registry, "dispatch_rate", ""))
		require.EqualValues(t, 120, m.Tally().Handled)
		require.EqualValues(t, 30, m.Tally().Failed)
	})
}

func TestMeterNamesMayNotCollide(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	_, err := dispatch.NewMeter("a", registry)
	require.NoError(t, err)
	_, err = dispatch.NewMeter("b", registry)
	require.NoError(t, err)
	_, err = dispatch.NewMeter("a", registry)
	require.Error(t, err)
	_, err = dispatch.NewMeter("a", nil)
	require.NoError(t, err)
}

// value is that of a metric: of several the one with the result, of a histogram the number of samples.
func value(t *testing.T, g prometheus.Gatherer, name, result string) float64 {
	t.Helper()
	families, err := g.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			matches := result == ""
			for _, label := range m.GetLabel() {
				matches = matches || label.GetValue() == result
			}
			if matches {
				return m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	require.Fail(t, "no such metric", name)
	return 0
}
