package consumer

import (
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/events"
)

// Class is what a failure means. These are all the rules:
//
//	what failed                                          class       what happens
//	marked with AsOutage; Done                           outage      this replica pauses, probes, burns no attempt
//	database down, unreachable, full, too slow           outage      the same
//	commit with unknown outcome                          outage      the same; the lanes decide when it comes again
//	many orders in a row, none succeeding (streak)       outage      the same; the events are parked meanwhile
//	table parked at its limit                            full        pauses for a while; messages stay with the broker
//	deadlock, lock or serialization conflict             none        at once again, then back to the broker
//	the end of the drain time                            none        back to the broker
//	marked with AsPermanent                              permanent   dead letter at once
//	no event, or one that cannot be read                 permanent   dead letter at once
//	everything else, panics and time-outs too            transient   parked, tried again; after MaxAttempts a dead letter
//
// A dead letter holds its order, or is passed over: AfterDeath.
type Class int

const (
	// Transient: this message failed now; it is parked and tried again.
	Transient Class = iota
	// Outage: something that every message needs is down; the consumer pauses and burns no attempts.
	Outage
	// Permanent: this message can never work; it becomes a dead letter at once.
	Permanent
)

type classError struct {
	class Class
	err   error
}

func (e *classError) Error() string { return e.err.Error() }
func (e *classError) Unwrap() error { return e.err }

// AsOutage marks err as an outage: something that every message needs is down.
func AsOutage(err error) error { return mark(Outage, err) }

// AsPermanent marks err as permanent.
func AsPermanent(err error) error { return mark(Permanent, err) }

func mark(c Class, err error) error {
	if err == nil {
		return nil
	}
	return &classError{c, err}
}

// Classify returns the class of err: what it was marked as, an unavailable database is an outage, an
// undecodable event permanent, everything else transient.
func Classify(err error) Class {
	var marked *classError
	switch {
	case errors.As(err, &marked):
		return marked.class
	case errors.Is(err, events.ErrInvalid):
		return Permanent
	case databaseClass(err) == database.ClassUnavailable:
		return Outage
	}
	return Transient
}

// databaseClass is database.Classify for errors that may come from the database. What Prepare
// returns cannot: a deadline or a refused connection there is one event's partner, not our database.
func databaseClass(err error) database.Class {
	var effect *prepareError
	if errors.As(err, &effect) {
		return database.ClassOther
	}
	return database.Classify(err)
}

// prepareError marks where an error comes from.
type prepareError struct{ err error }

func (e *prepareError) Error() string { return "prepare: " + e.err.Error() }
func (e *prepareError) Unwrap() error { return e.err }

// panicError is a panic of an effect; it counts as a transient failure of the event.
type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v", e.value) }

// guard calls do and returns its panic as an error: one event's bug must not end the process that
// handles all the others.
func guard(do func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &panicError{v, debug.Stack()}
		}
	}()
	return do()
}
