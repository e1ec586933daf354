package intake

import (
	"time"

	"github.com/pillarbox/pillarbox/shared/events"
)

func (c Config) withDefaults() Config {
	if c.Mode == "" {
		c.Mode = ModeGroup
	}
	for _, n := range []struct {
		to  *int
		def int
	}{
		{&c.Queue, 1000}, {&c.Group, 100}, {&c.GroupBytes, 4 << 20}, {&c.Committers, 2}, {&c.MaxEvent, events.MaxSize},
		{&c.FlushCount, 500},
	} {
		if *n.to <= 0 {
			*n.to = n.def
		}
	}
	for _, d := range []struct {
		to  *time.Duration
		def time.Duration
	}{
		{&c.Wait, 10 * time.Second}, {&c.Timeout, 5 * time.Second}, {&c.Drain, 8 * time.Second},
		{&c.FlushEvery, 50 * time.Millisecond},
	} {
		if *d.to <= 0 {
			*d.to = d.def
		}
	}
	return c
}
