package dispatch

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Mode names a strategy in a configuration.
type Mode string

// The modes of New.
const (
	ModeCompeting  Mode = "competing"
	ModeSingle     Mode = "single"
	ModeRoundRobin Mode = "round-robin"
	ModeByKey      Mode = "by-key"
)

// Modes are all modes.
func Modes() []Mode { return []Mode{ModeCompeting, ModeSingle, ModeRoundRobin, ModeByKey} }

// UnmarshalText takes the name of a mode only.
func (m *Mode) UnmarshalText(text []byte) error {
	if !Mode(text).Valid() {
		names := make([]string, 0, len(Modes()))
		for _, mode := range Modes() {
			names = append(names, string(mode))
		}
		return fmt.Errorf("%q is none of %s", text, strings.Join(names, ", "))
	}
	*m = Mode(text)
	return nil
}

// Valid reports whether m is a mode.
func (m Mode) Valid() bool { return slices.Contains(Modes(), m) }

// Spread is what New makes a strategy from.
type Spread[T any] struct {
	Mode       Mode
	Workers    int              // 1 to MostWorkers; ModeSingle has one whatever is said here
	Key        func(T) string   // for ModeByKey
	RoundRobin RoundRobinConfig // for ModeRoundRobin
}

// New returns the strategy with workers that are all alike; those that are
// known by name are called 1, 2, 3 …
func New[T any](s Spread[T], handle Handler[T]) (Strategy[T], error) {
	if s.Workers < 1 || s.Workers > MostWorkers {
		return nil, fmt.Errorf("workers must be 1 to %d, not %d", MostWorkers, s.Workers)
	}
	switch s.Mode {
	case ModeSingle:
		return NewSingle(handle), nil
	case ModeCompeting:
		return NewCompeting(s.Workers, Alike(handle))
	case ModeRoundRobin:
		r := NewRoundRobin[T](s.RoundRobin)
		return r, joinAll(s.Workers, handle, r.Join)
	case ModeByKey:
		if s.Key == nil {
			return nil, fmt.Errorf("strategy %s needs to know the key of a message", s.Mode)
		}
		k := NewByKey(s.Key)
		return k, joinAll(s.Workers, handle, k.Join)
	}
	return nil, fmt.Errorf("%q is no dispatch strategy", s.Mode)
}

func joinAll[T any](n int, handle Handler[T], join func(string, Handler[T]) error) error {
	for i := range n {
		if err := join(strconv.Itoa(i+1), handle); err != nil {
			return err
		}
	}
	return nil
}
