package database

import (
	"strconv"
	"strings"
)

// MaxParameters is the largest number of parameters in one statement that both
// engines take (SQLite 32,766; PostgreSQL 65,535).
const MaxParameters = 32766

// Dialect names the engine and holds the few differences in SQL text.
type Dialect struct{ engine engine }

type engine int

const (
	postgres engine = iota
	sqlite
)

// Postgres reports whether the engine is PostgreSQL.
func (d Dialect) Postgres() bool { return d.engine == postgres }

// Now is an SQL expression for the database's clock in microseconds since 1970.
// SQLite's ticks in milliseconds.
func (d Dialect) Now() string {
	if d.engine == sqlite {
		return "CAST(unixepoch('subsec') * 1000000 AS INTEGER)"
	}
	// clock_timestamp, not now(): a transaction's start may be long ago.
	return "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
}

// ForUpdate is the row lock clause to append to a SELECT (" FOR UPDATE", or "" where the
// transaction already excludes every other writer).
func (d Dialect) ForUpdate() string { return d.lock(" FOR UPDATE") }

// ForShare is like ForUpdate with a shared lock.
func (d Dialect) ForShare() string { return d.lock(" FOR SHARE") }

// ForKeyShare is the weakest lock: it holds off a change of the row's key and a
// ForUpdate, but no change of other columns.
func (d Dialect) ForKeyShare() string { return d.lock(" FOR KEY SHARE") }

// SkipLocked is ForUpdate that passes over rows locked by others.
func (d Dialect) SkipLocked() string { return d.lock(" FOR UPDATE SKIP LOCKED") }

func (d Dialect) lock(clause string) string {
	if d.engine == sqlite {
		return ""
	}
	return clause
}

// Values returns the placeholder rows "($1,$2),($3,$4)" for a multi-row INSERT.
// rows × columns must not exceed MaxParameters.
func Values(rows, columns int) string {
	var b strings.Builder
	b.Grow(rows * (columns*7 + 3))
	for row := range rows {
		if row > 0 {
			b.WriteByte(',')
		}
		list(&b, 1+row*columns, columns)
	}
	return b.String()
}

// In returns the placeholder list "($k,$k+1,…)" of n parameters starting at
// $first. n must be at least 1: an empty list is no SQL.
func In(first, n int) string {
	var b strings.Builder
	b.Grow(n*7 + 2)
	list(&b, first, n)
	return b.String()
}

func list(b *strings.Builder, first, n int) {
	b.WriteByte('(')
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteByte('$')
		b.WriteString(strconv.Itoa(first + i))
	}
	b.WriteByte(')')
}
