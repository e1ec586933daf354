// Bench measures Pillarbox beside its peers and the limits of the machine, in one run: each
// round runs every case of a target once, one after the other, and ratios are taken within a round,
// so that what else the machine does meets all of them. It is a module of its own, since
// the peers are no dependencies of the product.
//
// Each target ends as a line such as
//
//	T1 post-orders-64 ratio=0.74 target>=0.70 ok
//
// with the median of the rounds' ratios, or "short" when the target is missed. The exit status is 0
// in either case: whether a figure is good enough depends on the machine; 1 means that
// something could not be measured.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime/pprof"
	"slices"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"
)

// settings of the command line.
type settings struct {
	Only     string `env:"ONLY" help:"Targets to measure, such as T1 or T1,T6; empty: all."`
	Rounds   int    `env:"ROUNDS" default:"5" help:"Rounds of each target."`
	Scale    int    `env:"SCALE" default:"100" help:"Per cent of the standard amounts of work: 10 is a quick look."`
	Postgres string `env:"PILLARBOX_TEST_POSTGRES_URL" help:"A PostgreSQL server with default durability, as a user who may create databases."`
	Suite    string `env:"SUITE" default:"bin/suite" help:"The suite's binary."`
	Case     string `env:"CASE" help:"Only cases whose name contains this; ratios to the others are then missing."`
	Profile  string `env:"PROFILE" help:"Write a CPU profile of this program, what is measured in it included, to this file."`
	Dir      string `env:"BENCH_DIR" help:"Scratch folder, on the disk to be measured; default: a temporary one."`
}

// target is one thing that is measured.
type target struct {
	name, about string
	run         func(ctx context.Context, e *env) error
}

var targets = []target{
	{"T1", "POST /orders beside a bare group commit and one transaction per request", measureIntake},
	{"T2", "the relay beside Watermill's forwarder and bare atomic batches", measureRelay},
	{"T3", "from POST to handler and to mail at 200 orders a second, beside River and watermill-sql", measureLatency},
	{"T4", "the effects of orders that wait, beside the disk", measureLine},
	{"T5", "the headline: mails of 512 KB from the queue to the folder, beside the files alone", measureHeadline},
	{"T6", "the broker adapter beside nats.go", measureAdapter},
	{"T7", "footprint", measureFootprint},
	{"T8", "three mailers beside one, at a mail server that takes 50 ms for a mail", measureScaleOut},
}

func main() {
	var s settings
	kong.Parse(&s, kong.Description("Measures Pillarbox beside its peers and the machine."))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, s); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, s settings) error {
	if s.Profile != "" {
		f, err := os.Create(s.Profile)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	e, err := newEnv(s)
	if err != nil {
		return err
	}
	defer e.close()
	only := strings.FieldsFunc(s.Only, func(r rune) bool { return r == ',' || r == ' ' })
	for _, name := range only {
		if !slices.ContainsFunc(targets, func(t target) bool { return t.name == name }) {
			return fmt.Errorf("no target %q", name)
		}
	}
	failed := 0
	for _, t := range targets {
		if len(only) > 0 && !slices.Contains(only, t.name) {
			continue
		}
		fmt.Printf("\n## %s %s\n", t.name, t.about)
		if err := t.run(ctx, e); err != nil {
			failed++
			fmt.Printf("%s not measured: %v\n", t.name, err)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	fmt.Println()
	for _, line := range e.verdicts {
		fmt.Println(line)
	}
	if failed > 0 {
		return fmt.Errorf("%d targets could not be measured", failed)
	}
	return nil
}
