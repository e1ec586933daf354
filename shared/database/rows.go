package database

import (
	"fmt"
	"strings"
)

// Column is one column of many rows. Values is a []string, []int64 or [][]byte; a nil []byte is an empty one.
type Column struct {
	Type   string // of PostgreSQL: text, bigint, bytea
	Values any
}

// Rows returns what stands between "INSERT INTO t (…)" and "ON CONFLICT", and its arguments. On
// PostgreSQL the text is the same for any number of rows, so that one prepared statement does for all of
// them: an array for each column. The columns must have the same number of values, at least one.
// The rows are inserted in their order.
func (d Dialect) Rows(columns ...Column) (text string, args []any) {
	if d.engine == sqlite {
		return "VALUES " + Values(length(columns[0].Values), len(columns)), rowMajor(columns)
	}
	var b strings.Builder
	b.WriteString("SELECT * FROM unnest(")
	for n, c := range columns {
		if n > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "$%d::%s[]", n+1, c.Type)
		args = append(args, filled(c.Values))
	}
	b.WriteByte(')')
	return b.String(), args
}

func length(values any) int {
	switch v := values.(type) {
	case []string:
		return len(v)
	case []int64:
		return len(v)
	case [][]byte:
		return len(v)
	}
	panic(fmt.Sprintf("database: no column of %T", values))
}

func rowMajor(columns []Column) []any {
	rows, width := length(columns[0].Values), len(columns)
	args := make([]any, rows*width)
	for n, c := range columns {
		switch v := c.Values.(type) {
		case []string:
			spread(args, v, n, width)
		case []int64:
			spread(args, v, n, width)
		case [][]byte:
			spread(args, filled(v).([][]byte), n, width)
		}
	}
	return args
}

// filled returns the values with an empty one in place of nil, which would be NULL.
func filled(values any) any {
	bytes, ok := values.([][]byte)
	if !ok {
		return values
	}
	all := make([][]byte, len(bytes))
	for i, b := range bytes {
		if all[i] = b; b == nil {
			all[i] = []byte{}
		}
	}
	return all
}

func spread[T any](args []any, values []T, n, width int) {
	for row, value := range values {
		args[row*width+n] = value
	}
}

// AnyOf returns the condition that the expression is one of the values, which is the text after it, and
// its arguments; on PostgreSQL the text does not depend on their number. first is the number of its
// first parameter.
func (d Dialect) AnyOf(first int, values []string) (condition string, args []any) {
	if d.engine == sqlite {
		args = make([]any, len(values))
		for i, v := range values {
			args[i] = v
		}
		return "IN " + In(first, len(values)), args
	}
	return fmt.Sprintf("= ANY ($%d::text[])", first), []any{values}
}
