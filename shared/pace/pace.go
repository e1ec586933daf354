// Package pace keeps all replicas of a service together within one budget: a rate
// of events per second and a burst. The budget is a row in the service's own
// database; a replica leases shares of it, a few or many events at a time, and
// spends them without asking again.
//
// It promises that over any window of t seconds no more than rate × t + burst
// events pass Wait, in all replicas together, whenever they start, freeze and
// die; that who asks first is served first, so that nobody starves (while less than a
// minute's worth of events is asked for at once; beyond that, chance decides); and that
// a replica without work holds nothing for long. It does not promise that the
// whole rate is used: a share that is not spent in time is void, so a database whose
// answers take longer than the validity lets nothing pass. What passes Wait may happen
// a little later; that delay is the caller's.
//
// How: every event of a share has a moment from which it may be spent, and is void
// validity later (at most two seconds, and at most what half the burst takes). The
// moments are booked in the database one behind the other, also ahead of time: a
// queue of all replicas (GCRA with the burst less rate × validity as its tolerance, so
// that even shares spent at their last moment keep to the law).
//
//	row:    booked ─────────────────────────┐ moves ahead by events ÷ rate with each share
//	        ──────┼─────────────┼───────────┼──────► database's clock
//	            now    from = booked − tolerance, void = from + validity
//
// A crash leaves the killed replica's shares leased. Nobody could tell which of them
// were spent, so they are not booked back: they come back because the budget grows
// while they are void, a share leased in advance within a quarter of its validity.
// There is nothing to clean up.
package pace

import (
	"errors"
	"fmt"
	"math"
	"time"
)

const (
	// maxValidity bounds for how long a share can be held, minValidity leaves time for
	// the database's answer to travel.
	maxValidity = 2 * time.Second
	minValidity = 100 * time.Millisecond
	// maxAhead is how far ahead shares are booked. It bounds what a killed replica's
	// bookings can hold up, and tells a queue from a clock that was set back.
	maxAhead = time.Minute

	minRate  = 0.001
	maxRate  = 1_000_000
	maxBurst = 1_000_000_000
)

// Config of a Pacer.
type Config struct {
	Name  string  // of the budget: replicas with one name in one database share it
	Rate  float64 // events per second in all replicas together; 0: unlimited
	Burst int     // events that may pass at once; 0: two seconds' worth, at least 2
}

// Validate lists all that is wrong with c.
func (c Config) Validate() error {
	var errs []error
	if len(c.Name) < 1 || len(c.Name) > 64 {
		errs = append(errs, errors.New("pace: name must have 1 to 64 characters"))
	}
	if c.Rate != 0 && !(c.Rate >= minRate && c.Rate <= maxRate) { // also when it is no number
		errs = append(errs, fmt.Errorf("pace: rate must be 0 (unlimited) or %g to %d events per second", minRate, maxRate))
	} else if least := c.leastBurst(); c.Burst != 0 && (c.Burst < least || c.Burst > maxBurst) {
		errs = append(errs, fmt.Errorf("pace: burst must be 0 (two seconds' worth) or %d to %d events at this rate", least, maxBurst))
	}
	return errors.Join(errs...)
}

// leastBurst makes room for one event, and for those that must be valid for as
// long as the database's answer travels.
func (c Config) leastBurst() int {
	if c.Rate == 0 {
		return 0
	}
	return max(2, int(math.Ceil(c.Rate*2*minValidity.Seconds())))
}

// law is the arithmetic of a budget. Times are whole microseconds, as in the database.
type law struct {
	rate      float64
	validity  int64 // of an event from the moment it may be spent
	tolerance int64 // how far ahead of being earned events may be spent
	most      int   // largest number of events that can be spent at once
	chunk     int   // most events leased at once when fewer are asked for
}

func (c Config) law() law {
	burst := float64(c.Burst)
	if c.Burst == 0 {
		burst = max(2, math.Ceil(2*c.Rate))
	}
	seconds := min(maxValidity.Seconds(), burst/2/c.Rate, (burst-1)/c.Rate)
	// Two microseconds less make room for the rounding of tolerance and cost.
	l := law{rate: c.Rate, validity: int64(seconds*1e6) - 2}
	l.tolerance = int64(burst*1e6/c.Rate) - l.validity
	l.most = int(burst - c.Rate*seconds)
	for l.most > 1 && l.cost(l.most) > l.tolerance {
		l.most--
	}
	l.chunk = max(1, int(c.Rate*seconds/4))
	return l
}

// cost is how long the budget takes to grow by n events.
func (l law) cost(n int) int64 { return int64(math.Ceil(float64(n) * 1e6 / l.rate)) }
