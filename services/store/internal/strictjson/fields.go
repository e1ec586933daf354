package strictjson

import (
	"math"
	"slices"
	"strconv"
	"strings"
)

// FieldError is one field of the wrong shape.
type FieldError struct {
	Pointer string // JSON pointer (RFC 6901)
	Detail  string
}

// Decoder turns values into Go values and collects what has the wrong shape, so that one
// answer names every wrong field.
type Decoder struct {
	Errors []FieldError
}

func (d *Decoder) fail(pointer, detail string) {
	d.Errors = append(d.Errors, FieldError{pointer, detail})
}

// Fields are the members that an object may have, at most 64.
type Fields []Field

// Field is a member's name and what reads it.
type Field struct {
	Name string
	Read func(v Value, pointer string)
}

// find is the field's index, negative when there is none. Fields are few: a map would cost more.
func (f Fields) find(name string) int {
	return slices.IndexFunc(f, func(field Field) bool { return field.Name == name })
}

// Object reads the members of v with fields. A member that fields does not name, or that comes
// twice, is an error; one that does not come is the caller's to notice.
func (d *Decoder) Object(v Value, pointer string, fields Fields) {
	if !d.is(v, Object, pointer) {
		return
	}
	var seen uint64 // a bit for each field
	for _, m := range v.Members {
		at := pointer + "/" + escapePointer(m.Name)
		n := fields.find(m.Name)
		switch {
		case n < 0:
			d.fail(at, unknown(m.Name, fields))
		case seen&(1<<n) != 0:
			d.fail(at, "comes more than once")
		default:
			seen |= 1 << n
			fields[n].Read(m.Value, at)
		}
	}
}

// Array reads up to limit elements of v with read; the rest is left unread.
func (d *Decoder) Array(v Value, pointer string, limit int, read func(v Value, pointer string)) {
	if !d.is(v, Array, pointer) {
		return
	}
	for i, element := range v.Elements[:min(limit, len(v.Elements))] {
		read(element, pointer+"/"+strconv.Itoa(i))
	}
}

// String reads a string into to.
func (d *Decoder) String(to *string) func(v Value, pointer string) {
	return func(v Value, pointer string) {
		if d.is(v, String, pointer) {
			*to = v.Text
		}
	}
}

// Integer reads a whole number without fraction or exponent into to. One that does not fit
// becomes the nearest int64, so that a rule about its range can refuse it.
func (d *Decoder) Integer(to *int64) func(v Value, pointer string) {
	return func(v Value, pointer string) {
		if !d.is(v, Number, pointer) {
			return
		}
		n, err := strconv.ParseInt(v.Text, 10, 64)
		switch {
		case strings.ContainsAny(v.Text, ".eE"):
			d.fail(pointer, "must be a whole number without fraction or exponent")
		case err != nil && v.Text[0] == '-':
			*to = math.MinInt64
		case err != nil:
			*to = math.MaxInt64
		default:
			*to = n
		}
	}
}

func (d *Decoder) is(v Value, want Kind, pointer string) bool {
	if v.Kind == want {
		return true
	}
	d.fail(pointer, "must be "+want.String()+", not "+v.Kind.String())
	return false
}

// unknown is the message for a member that no field has, with the name that was probably meant.
func unknown(name string, fields Fields) string {
	for _, known := range fields {
		if strings.EqualFold(known.Name, name) {
			return "is not a known field; names are case-sensitive: " + known.Name
		}
	}
	if len(fields) == 0 {
		return "is not a known field; there are none here"
	}
	names := make([]string, 0, len(fields))
	for _, known := range fields {
		names = append(names, known.Name)
	}
	slices.Sort(names)
	return "is not a known field; known here: " + strings.Join(names, ", ")
}

func escapePointer(name string) string {
	if !strings.ContainsAny(name, "~/") { // nearly always, and a replacer is not cheap
		return name
	}
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
}
