package database

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	sqlitedriver "modernc.org/sqlite"
)

// ErrCommitUnknown means that the connection broke while a commit was under
// way: the transaction may or may not have happened.
var ErrCommitUnknown = errors.New("commit outcome unknown")

// Class says what an error of the database means for the work at hand.
type Class int

const (
	// ClassOther is an error that this package knows nothing about, and the
	// cancellation of the caller's own context.
	ClassOther Class = iota
	// ClassUnavailable: the database is down, refuses connections, is out of space or does not answer in time;
	// trying again later helps.
	ClassUnavailable
	// ClassConflict: deadlock, lock timeout, serialization or busy: the same work may be tried again at once.
	ClassConflict
	// ClassUnique: a unique key refused the row.
	ClassUnique
	// ClassData: the data itself was refused (check, length, encoding, range); trying again is no use.
	ClassData
)

// String is the class's name, for logs and metrics.
func (c Class) String() string {
	switch c {
	case ClassUnavailable:
		return "unavailable"
	case ClassConflict:
		return "conflict"
	case ClassUnique:
		return "unique"
	case ClassData:
		return "data"
	}
	return "other"
}

// Classify returns the class of err, looking through wrapping. A deadline that
// passed counts as unavailable: the database was too slow for the caller.
func Classify(err error) Class {
	if err == nil || errors.Is(err, context.Canceled) && !errors.Is(err, ErrCommitUnknown) {
		return ClassOther
	}
	var begin *beginError
	if errors.Is(err, ErrCommitUnknown) || errors.Is(err, errReadOnly) || errors.As(err, &begin) {
		return ClassUnavailable
	}
	var server *pgconn.PgError
	if errors.As(err, &server) {
		return classOfState(server)
	}
	var file *sqlitedriver.Error
	if errors.As(err, &file) {
		return classOfCode(file.Code())
	}
	if errors.Is(err, context.DeadlineExceeded) || connectionLost(err) {
		return ClassUnavailable
	}
	return ClassOther
}

// classOfState reads the SQLSTATE of PostgreSQL, first the codes that differ
// from their class of two characters.
func classOfState(e *pgconn.PgError) Class {
	switch e.Code {
	case "23505":
		return ClassUnique
	case "25P03", "25P04", // the session was ended for idling in a transaction, the transaction for its length
		"55P03", // lock timeout
		"26000": // a prepared statement that a pooler has dropped
		return ClassConflict
	case "0A000":
		// "Not supported" in general; from this routine it means a prepared statement
		// that a migration has outdated, and that the driver prepares anew.
		if e.Routine == "RevalidateCachedQuery" {
			return ClassConflict
		}
		return ClassOther
	case "25006", // read-only: a standby, or a primary that is being replaced
		"57014",          // statement timeout: stalled storage, not bad data
		"3D000",          // no such database (yet)
		"XX001", "XX002": // corrupted
		return ClassUnavailable
	}
	switch e.Code[:min(2, len(e.Code))] {
	case "08", "28", "53", "57", "58": // connection, log-in, resources, operator, system
		return ClassUnavailable
	case "40":
		return ClassConflict
	case "22", "23", "54": // data, constraints, size limits
		return ClassData
	}
	return ClassOther
}

// Result codes of SQLite, https://sqlite.org/rescode.html; the extended ones
// hold the primary one in the low byte.
const (
	sqliteBusy       = 5
	sqliteLocked     = 6
	sqliteNoMem      = 7
	sqliteReadOnly   = 8
	sqliteInterrupt  = 9
	sqliteIOErr      = 10
	sqliteCorrupt    = 11
	sqliteFull       = 13
	sqliteCantOpen   = 14
	sqliteProtocol   = 15
	sqliteTooBig     = 18
	sqliteConstraint = 19
	sqliteMismatch   = 20
	sqliteNotADB     = 26

	sqlitePrimaryMask          = 0xff
	sqliteConstraintPrimaryKey = 1555
	sqliteConstraintUnique     = 2067
	sqliteConstraintRowID      = 2579
)

func classOfCode(code int) Class {
	switch code {
	case sqliteConstraintUnique, sqliteConstraintPrimaryKey, sqliteConstraintRowID:
		return ClassUnique
	}
	switch code & sqlitePrimaryMask {
	case sqliteBusy, sqliteLocked:
		return ClassConflict
	case sqliteNoMem, sqliteReadOnly, sqliteInterrupt, sqliteIOErr, sqliteCorrupt, sqliteFull,
		sqliteCantOpen, sqliteProtocol, sqliteNotADB:
		return ClassUnavailable
	case sqliteTooBig, sqliteConstraint, sqliteMismatch:
		return ClassData
	}
	return ClassOther
}

// connectionLost reports that the connection could not be made or is gone.
func connectionLost(err error) bool {
	var connect *pgconn.ConnectError
	var network net.Error
	var server *pgconn.PgError
	switch {
	case errors.As(err, &server):
		return server.Severity == "FATAL" || server.Severity == "PANIC"
	case errors.As(err, &connect), errors.As(err, &network):
		return true
	}
	for _, lost := range []error{
		driver.ErrBadConn, io.EOF, io.ErrUnexpectedEOF, io.ErrClosedPipe, net.ErrClosed,
		syscall.ECONNRESET, syscall.EPIPE, syscall.ECONNREFUSED,
	} {
		if errors.Is(err, lost) {
			return true
		}
	}
	return pgconn.SafeToRetry(err) // the driver found the connection closed before it sent anything
}

// commitError decides whether a failed COMMIT may have happened all the same.
func commitError(err error) error {
	if commitRefused(err) {
		return fmt.Errorf("commit: %w", err)
	}
	return fmt.Errorf("%w: %w", ErrCommitUnknown, err)
}

// commitRefused reports answers after which the transaction certainly did not happen.
func commitRefused(err error) bool {
	var server *pgconn.PgError
	if errors.As(err, &server) {
		// A session that is ended (FATAL) may have been ended after its commit, except
		// when that was for idling: then COMMIT came too late.
		return server.Severity == "ERROR" || server.Code == "25P03"
	}
	var file *sqlitedriver.Error
	if errors.As(err, &file) {
		switch file.Code() & sqlitePrimaryMask {
		case sqliteBusy, sqliteLocked, sqliteConstraint, sqliteFull:
			return true
		}
		return false // after a failed fsync the log may or may not hold the commit
	}
	return errors.Is(err, pgx.ErrTxCommitRollback) || pgconn.SafeToRetry(err)
}
