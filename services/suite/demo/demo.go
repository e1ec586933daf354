// Package demo shows what a dispatch strategy does: three workers of 1, 2 and 3
// time units, nine numbered messages, and a table of who handled what from when
// to when. It runs the strategies themselves, in real time; nothing else of
// Pillarbox takes part.
package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/pillarbox/pillarbox/shared/dispatch"
)

// Command is "suite demo".
type Command struct {
	Strategy string        `arg:"" enum:"single,sequential,parallel,competing,round-robin,by-key" help:"single (worker 1 alone, one message after the other), sequential (every message to all workers, one after another), parallel (every message to all workers at once), competing (the first free worker takes the next message), round-robin (fixed turn) or by-key (all messages of one key to one worker)."`
	Unit     time.Duration `name:"unit" default:"100ms" help:"Length of a time unit (1ms to 1m)."`
	JSON     bool          `name:"json" help:"Print one object per handling instead of a table."`

	Out io.Writer `kong:"-"` // default standard output
}

// Validate is called by the command line.
func (c *Command) Validate() error {
	if c.Unit < time.Millisecond || c.Unit > time.Minute {
		return errors.New("--unit must be 1ms to 1m")
	}
	return nil
}

// Run runs the strategy and prints what happened.
func (c *Command) Run() error {
	if c.Out == nil {
		c.Out = os.Stdout
	}
	run, err := Play(context.Background(), c.Strategy, c.Unit)
	if err != nil {
		return err
	}
	if c.JSON {
		return run.writeJSON(c.Out)
	}
	return run.writeTable(c.Out)
}

const (
	messages = 9
	workers  = 3 // number n takes n units for a message
)

// Handling is one message at one worker; times are in units from the start.
type Handling struct {
	Message int     `json:"message"`
	Worker  int     `json:"worker"`
	Start   float64 `json:"start"`
	End     float64 `json:"end"`
	Key     string  `json:"key,omitempty"` // where it decides
}

// Result is what happened, by time.
type Result struct {
	Handlings []Handling
	Tally     dispatch.Tally
}

// Play runs a strategy with the nine messages.
func Play(ctx context.Context, strategy string, unit time.Duration) (Result, error) {
	s := &stage{unit: unit, start: time.Now(), keyed: strategy == string(dispatch.ModeByKey)}
	handle, err := s.strategy(strategy)
	if err != nil {
		return Result{}, err
	}
	meter, err := dispatch.NewMeter("demo", nil)
	if err != nil {
		return Result{}, err
	}
	all := make([]int, messages)
	for i := range all {
		all[i] = i + 1
	}
	if err := errors.Join(dispatch.MeasureBatch(meter, nil, handle)(ctx, all)...); err != nil {
		return Result{}, fmt.Errorf("demo: %w", err)
	}
	slices.SortFunc(s.seen, func(a, b Handling) int {
		return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(a.Worker, b.Worker))
	})
	return Result{s.seen, meter.Tally()}, nil
}

// stage is where the workers work.
type stage struct {
	unit  time.Duration
	start time.Time
	keyed bool

	mu   sync.Mutex // guards seen
	seen []Handling
}

// strategy puts the three workers under a strategy.
func (s *stage) strategy(name string) (dispatch.BatchHandler[int], error) {
	switch name {
	case "sequential":
		return dispatch.Each(dispatch.Sequential(s.workers()...)), nil
	case "parallel":
		return dispatch.Each(dispatch.Parallel(s.workers()...)), nil
	case string(dispatch.ModeSingle):
		return dispatch.NewSingle(s.worker(1)).HandleBatch, nil
	case string(dispatch.ModeCompeting):
		c, err := dispatch.NewCompeting(workers, func(i int) dispatch.Handler[int] { return s.worker(i + 1) })
		if err != nil {
			return nil, err
		}
		return c.HandleBatch, nil
	case string(dispatch.ModeRoundRobin):
		r := dispatch.NewRoundRobin[int](dispatch.RoundRobinConfig{})
		return r.HandleBatch, s.joinAll(r.Join)
	case string(dispatch.ModeByKey):
		k := dispatch.NewByKey(keyOf)
		return k.HandleBatch, s.joinAll(k.Join)
	}
	return nil, fmt.Errorf("%q is no strategy", name)
}

func (s *stage) workers() []dispatch.Handler[int] {
	all := make([]dispatch.Handler[int], workers)
	for i := range all {
		all[i] = s.worker(i + 1)
	}
	return all
}

func (s *stage) joinAll(join func(string, dispatch.Handler[int]) error) error {
	for i, handle := range s.workers() {
		if err := join(strconv.Itoa(i+1), handle); err != nil {
			return err
		}
	}
	return nil
}

// worker takes as many units for a message as its number says.
func (s *stage) worker(number int) dispatch.Handler[int] {
	return func(ctx context.Context, message int) error {
		begun := time.Now()
		timer := time.NewTimer(time.Duration(number) * s.unit)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		h := Handling{Message: message, Worker: number, Start: s.units(begun), End: s.units(time.Now())}
		if s.keyed {
			h.Key = keyOf(message)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.seen = append(s.seen, h)
		return nil
	}
}

// units is the time since the start, to a tenth of a unit.
func (s *stage) units(at time.Time) float64 {
	tenths := at.Sub(s.start).Round(s.unit/10).Seconds() / (s.unit / 10).Seconds()
	return float64(int64(tenths+0.5)) / 10
}

// keyOf gives the messages three keys in turn.
func keyOf(message int) string { return [...]string{"ink", "tea", "milk"}[message%3] }
