package dispatch_test

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/shared/dispatch"
)

// budget is what may stand between a message and its handler.
const budget = 2 // allocations per message

func work(_ context.Context, m message) error {
	if m.n < 0 {
		return errBoom
	}
	return nil
}

// paths are the ways of a message to work; singly is per message, in batches of 100 otherwise.
func paths(tb testing.TB) (singly map[string]dispatch.Handler[message], batches map[string]dispatch.BatchHandler[message]) {
	tb.Helper()
	meter, err := dispatch.NewMeter("bench", nil)
	require.NoError(tb, err)
	made := time.Now()
	measure := dispatch.Measure(meter, func(message) time.Time { return made }, work)
	retry := dispatch.Retry(dispatch.Retries{}, work)
	singly = map[string]dispatch.Handler[message]{
		"direct":     work,
		"measure":    measure,
		"retry":      retry,
		"one-each":   dispatch.One(dispatch.Each(work)),
		"sequential": dispatch.Sequential(work),
		"parallel-3": dispatch.Parallel(work, work, work),
	}
	batches = map[string]dispatch.BatchHandler[message]{"each": dispatch.Each(work)}
	for _, mode := range dispatch.Modes() {
		s, err := dispatch.New(dispatch.Spread[message]{Mode: mode, Workers: 10, Key: keyOf}, work)
		require.NoError(tb, err)
		singly[string(mode)] = s.Handle
		batches[string(mode)] = s.HandleBatch
	}
	return singly, batches
}

// hundred are messages of a hundred orders.
func hundred() []message {
	all := make([]message, 100)
	for i := range all {
		all[i] = message{i, fmt.Sprintf("0198c3e2-7f0a-7000-8000-0000000000%02d", i)}
	}
	return all
}

// BenchmarkHandle is the time of one message on its way to a handler that does nothing.
func BenchmarkHandle(b *testing.B) {
	singly, _ := paths(b)
	messages := hundred()
	for _, name := range []string{
		"direct", "measure", "retry", "one-each", "sequential", "parallel-3", "single", "competing", "round-robin", "by-key",
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			handle, ctx, i := singly[name], b.Context(), 0
			for b.Loop() {
				if err := handle(ctx, messages[i%100]); err != nil {
					b.Fatal(err)
				}
				i++
			}
		})
	}
}

// BenchmarkBatch is the time per message when they come a hundred at a time.
func BenchmarkBatch(b *testing.B) {
	_, batches := paths(b)
	messages := hundred()
	for _, name := range []string{"each", "single", "competing", "round-robin", "by-key"} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			handle, ctx := batches[name], b.Context()
			for b.Loop() {
				if errs := handle(ctx, messages); errs != nil {
					b.Fatal(errs)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*100), "ns/message")
		})
	}
}

// BenchmarkByKeyWorkers shows that the time of the rendezvous grows with the workers.
func BenchmarkByKeyWorkers(b *testing.B) {
	for _, n := range []int{1, 10, 100} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			s, err := dispatch.New(dispatch.Spread[message]{Mode: dispatch.ModeByKey, Workers: n, Key: keyOf}, work)
			require.NoError(b, err)
			m := hundred()[7]
			for b.Loop() {
				if err := s.Handle(b.Context(), m); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestAllocationsStayWithinBudget is the part of the benchmarks that no load of the machine can disturb.
func TestAllocationsStayWithinBudget(t *testing.T) { //nolint:paralleltest // AllocsPerRun counts those of the whole process
	singly, batches := paths(t)
	messages := hundred()
	for name, handle := range singly {
		if name == "parallel-3" { // has a goroutine per handler
			continue
		}
		i := 0
		got := testing.AllocsPerRun(500, func() { _ = handle(t.Context(), messages[i%100]); i++ })
		require.LessOrEqual(t, got, float64(budget), name)
	}
	for name, handle := range batches {
		got := testing.AllocsPerRun(50, func() { _ = handle(t.Context(), messages) }) / 100
		require.LessOrEqual(t, got, float64(budget), name)
	}
}
