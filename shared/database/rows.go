package database

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Rows returns what stands between "INSERT INTO t (…)" and "ON CONFLICT", and its arguments; no other
// parameters may follow. row gives an item's values in the order of the columns: string, int, int64 or []byte (nil is an
// empty one), each column always of the same type. On PostgreSQL there are two texts, one for a single row and one for any number of
// them, an array for each column, so that two prepared statements do: unnest costs 20 µs before its first row,
// a third of what a statement with one row takes. There must be an item at least. The rows are inserted in their order.
func Rows[T any](d Dialect, items []T, row func(T) []any) (text string, args []any) {
	flat := row(items[0])
	width := len(flat)
	flat = slices.Grow(flat, width*(len(items)-1))
	for _, item := range items[1:] {
		flat = append(flat, row(item)...)
	}
	if d.engine == sqlite {
		return "VALUES " + unnamed(len(items), width), filled(flat)
	}
	if len(items) == 1 {
		return "VALUES " + Values(1, width), filled(flat)
	}
	var b strings.Builder
	b.WriteString("SELECT * FROM unnest(")
	for n := range width {
		if n > 0 {
			b.WriteByte(',')
		}
		kind, column := column(flat[n:], width)
		fmt.Fprintf(&b, "$%d::%s[]", n+1, kind)
		args = append(args, column)
	}
	b.WriteByte(')')
	return b.String(), args
}

// unnamed is Values without numbers: SQLite takes $1 for a name and looks each up among all before it, when it parses and
// again when the driver binds, which is half the work of an insert of a hundred rows.
func unnamed(rows, columns int) string {
	row := ",(" + strings.Repeat(",?", columns)[1:] + ")"
	return strings.Repeat(row, rows)[1:]
}

// column takes every width-th value: they are one column's.
func column(flat []any, width int) (kind string, values any) {
	switch flat[0].(type) {
	case string:
		return "text", every[string](flat, width)
	case int64:
		return "bigint", every[int64](flat, width)
	case int:
		return "bigint", every[int](flat, width)
	case []byte:
		return "bytea", every[[]byte](filled(flat), width)
	}
	panic(fmt.Sprintf("database: no column of %T", flat[0]))
}

func every[T any](flat []any, width int) []T {
	values := make([]T, 0, (len(flat)+width-1)/width)
	for n := 0; n < len(flat); n += width {
		values = append(values, flat[n].(T))
	}
	return values
}

// filled has an empty slice of bytes in place of a nil one, which would be NULL.
func filled(values []any) []any {
	for n, v := range values {
		if b, ok := v.([]byte); ok && b == nil {
			values[n] = []byte{}
		}
	}
	return values
}

// AnyOf returns the condition that the expression is one of the values (a []string or []int64), which is the text
// after it, and its one argument. n is the number of its parameter. The text does not depend on how many values there are: one
// prepared statement does for all, and SQLite, which looks each $n up among those before it, has one to look up.
func (d Dialect) AnyOf(n int, values any) (condition string, arg any) {
	kind := "text"
	if _, numbers := values.([]int64); numbers {
		kind = "bigint"
	}
	if d.engine == sqlite {
		list, err := json.Marshal(values)
		if err != nil {
			panic(fmt.Sprintf("database: %T is no list of values", values)) // strings and numbers always encode
		}
		return fmt.Sprintf("IN (SELECT value FROM json_each($%d))", n), string(list)
	}
	return fmt.Sprintf("= ANY ($%d::%s[])", n, kind), values
}
