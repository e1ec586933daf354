package database

import "errors"

// ErrCommitUnknown means that the connection broke while a commit was under
// way: the transaction may or may not have happened.
var ErrCommitUnknown = errors.New("commit outcome unknown")

// Class says what an error of the database means for the work at hand.
type Class int

const (
	// ClassOther is an error that this package knows nothing about.
	ClassOther Class = iota
	// ClassUnavailable: the database is down, refuses connections or is out of space; trying again later helps.
	ClassUnavailable
	// ClassConflict: deadlock, lock timeout, serialization or busy: the same work may be tried again at once.
	ClassConflict
	// ClassUnique: a unique key refused the row.
	ClassUnique
	// ClassData: the data itself was refused (check, length, encoding, range); trying again is no use.
	ClassData
)

// Classify returns the class of err, looking through wrapping.
func Classify(err error) Class { panic("skeleton") }
