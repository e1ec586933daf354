package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
)

// figures of one run of a case, by name: "rate", "p50", "p99".
type figures map[string]float64

// benchCase is one way of doing the work of a target.
type benchCase struct {
	name string
	run  func(ctx context.Context) (figures, error)
}

// rounds holds, for each case, the figures of each round.
type rounds struct {
	cases []string
	of    map[string][]figures
}

// measure runs every case once a round. The order turns, so that nobody always
// comes after the same one.
func measure(ctx context.Context, e *env, cases []benchCase) (*rounds, error) {
	r := &rounds{of: map[string][]figures{}}
	cases = slices.DeleteFunc(slices.Clone(cases), func(c benchCase) bool { return !strings.Contains(c.name, e.Case) })
	for _, c := range cases {
		r.cases = append(r.cases, c.name)
	}
	for n := range e.Rounds {
		for i := range cases {
			c := cases[(i+n)%len(cases)]
			runtime.GC()
			f, err := c.run(ctx)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", c.name, err)
			}
			r.of[c.name] = append(r.of[c.name], f)
			fmt.Fprintf(os.Stderr, "  round %d/%d %-44s %s\n", n+1, e.Rounds, c.name, f)
		}
	}
	r.table()
	return r, nil
}

func (f figures) String() string {
	var names []string
	for name := range f {
		names = append(names, name)
	}
	slices.Sort(names)
	var parts []string
	for _, name := range names {
		parts = append(parts, fmt.Sprintf("%s %s", name, short(f[name])))
	}
	return strings.Join(parts, "  ")
}

func short(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// table prints the medians and the ranges.
func (r *rounds) table() {
	w := tabwriter.NewWriter(os.Stdout, 2, 0, 2, ' ', 0)
	for _, name := range r.cases {
		fmt.Fprintf(w, "%s\t", name)
		var kinds []string
		for kind := range r.of[name][0] {
			kinds = append(kinds, kind)
		}
		slices.Sort(kinds)
		for _, kind := range kinds {
			v := r.values(name, kind)
			fmt.Fprintf(w, "%s %s (%s to %s)\t", kind, short(median(v)), short(slices.Min(v)), short(slices.Max(v)))
		}
		fmt.Fprintln(w)
	}
	_ = w.Flush() // standard output
}

func (r *rounds) values(name, kind string) (v []float64) {
	for _, f := range r.of[name] {
		v = append(v, f[kind])
	}
	return v
}

// ratio is the median over the rounds of a's figure to b's.
func (r *rounds) ratio(a, b, kind string) float64 {
	of, to := r.values(a, kind), r.values(b, kind)
	var ratios []float64
	for i := range min(len(of), len(to)) {
		ratios = append(ratios, of[i]/to[i])
	}
	return median(ratios)
}

// within is the median over the rounds of one figure of a case to another.
func (r *rounds) within(name, of, to string) float64 {
	var ratios []float64
	for _, f := range r.of[name] {
		ratios = append(ratios, f[of]/f[to])
	}
	return median(ratios)
}

func (r *rounds) median(name, kind string) float64 { return median(r.values(name, kind)) }

func median(v []float64) float64 { return quantile(v, 0.5) }

// quantile is by nearest rank, of a case that the setting CASE left out NaN.
func quantile(v []float64, q float64) float64 {
	if len(v) == 0 {
		return math.NaN()
	}
	v = slices.Clone(v)
	slices.Sort(v)
	return v[min(int(q*float64(len(v))), len(v)-1)]
}
