// Package strictjson reads JSON the way a contract is read: what encoding/json silently
// repairs is an error here. It refuses bad UTF-8, lone surrogate escapes, a byte order
// mark, trailing data and deep nesting as malformed, and, through Fields, names every unknown,
// duplicate or wrongly typed member by its JSON pointer.
//
// The whole text is in memory, so callers bound it first. It keeps nothing.
package strictjson

import (
	"fmt"
	"slices"
	"unicode/utf8"
)

// The limits of a text. A value of two bytes takes a hundred in memory, so that bounding the
// bytes alone would bound little.
const (
	MaxDepth  = 16 // of arrays and objects in each other
	MaxValues = 20_000
)

// Kind of a value.
type Kind int

// The kinds of JSON values.
const (
	Null Kind = iota
	Bool
	Number
	String
	Array
	Object
)

// String is the kind's name with its article, for messages.
func (k Kind) String() string {
	return [...]string{"null", "a boolean", "a number", "a string", "an array", "an object"}[k]
}

// Value is one parsed value.
type Value struct {
	Kind     Kind
	Text     string   // of a string, decoded; of any other kind, as written
	Elements []Value  // of an array
	Members  []Member // of an object, in order and with duplicates
}

// Member is one name and value of an object.
type Member struct {
	Name  string
	Value Value
}

// SyntaxError says where the text stops being JSON.
type SyntaxError struct {
	Offset int // in bytes
	Detail string
	Limit  bool // it may well be JSON, but has more values or depth than is read
	Values bool // and it is the values
}

func (e *SyntaxError) Error() string { return fmt.Sprintf("%s at byte %d", e.Detail, e.Offset) }

// Parse reads one JSON text (RFC 8259). Its errors are *SyntaxError.
func Parse(text []byte) (Value, error) {
	if at := invalidUTF8(text); at >= 0 {
		return Value{}, &SyntaxError{Offset: at, Detail: "bytes that are not UTF-8"}
	}
	p := parser{text: string(text)}
	if len(p.text) >= 3 && p.text[:3] == "\ufeff" {
		return Value{}, p.fail("byte order mark")
	}
	p.space()
	if p.at == len(p.text) {
		return Value{}, p.fail("no JSON value")
	}
	v, err := p.value(0)
	if err != nil {
		return Value{}, err
	}
	p.space()
	if p.at < len(p.text) {
		return Value{}, p.fail("data after the JSON value")
	}
	return v, nil
}

func invalidUTF8(text []byte) int {
	for at := 0; at < len(text); {
		r, size := utf8.DecodeRune(text[at:])
		if r == utf8.RuneError && size == 1 {
			return at
		}
		at += size
	}
	return -1
}

type parser struct {
	text   string
	at     int
	values int
	// What the objects and arrays that are open hold so far: each takes its part when it closes, in one piece.
	members  []Member
	elements []Value
}

func (p *parser) fail(detail string) error { return &SyntaxError{Offset: p.at, Detail: detail} }

func (p *parser) beyond(detail string) error {
	return &SyntaxError{Offset: p.at, Detail: detail, Limit: true}
}

func (p *parser) space() {
	for p.at < len(p.text) {
		switch p.text[p.at] {
		case ' ', '\t', '\n', '\r':
			p.at++
		default:
			return
		}
	}
}

// next is the byte to read, 0 at the end (a NUL byte is valid nowhere, so they need no telling apart).
func (p *parser) next() byte {
	if p.at < len(p.text) {
		return p.text[p.at]
	}
	return 0
}

func (p *parser) take(c byte) bool {
	if p.next() == c && p.at < len(p.text) {
		p.at++
		return true
	}
	return false
}

func (p *parser) value(depth int) (Value, error) {
	if depth > MaxDepth {
		return Value{}, p.beyond("values nested too deeply")
	}
	if p.values++; p.values > MaxValues {
		return Value{}, &SyntaxError{Offset: p.at, Detail: "too many values", Limit: true, Values: true}
	}
	switch c := p.next(); {
	case c == '{' || c == '[':
		return p.composite(depth)
	case c == '"':
		text, err := p.str()
		return Value{Kind: String, Text: text}, err
	case c == '-' || c >= '0' && c <= '9':
		return p.number()
	}
	for _, w := range [...]struct {
		word string
		kind Kind
	}{{"true", Bool}, {"false", Bool}, {"null", Null}} {
		if len(p.text)-p.at >= len(w.word) && p.text[p.at:p.at+len(w.word)] == w.word {
			p.at += len(w.word)
			return Value{Kind: w.kind, Text: w.word}, nil
		}
	}
	return Value{}, p.fail("no JSON value")
}

// composite reads an array or an object and keeps its text, too.
func (p *parser) composite(depth int) (v Value, err error) {
	start := p.at
	if p.next() == '{' {
		v, err = p.object(depth)
	} else {
		v, err = p.array(depth)
	}
	v.Text = p.text[start:p.at]
	return v, err
}

func (p *parser) object(depth int) (Value, error) {
	v := Value{Kind: Object}
	p.at++
	p.space()
	if p.take('}') {
		return v, nil
	}
	for first := len(p.members); ; {
		p.space()
		if p.next() != '"' {
			return v, p.fail("no member name")
		}
		name, err := p.str()
		if err != nil {
			return v, err
		}
		p.space()
		if !p.take(':') {
			return v, p.fail("no colon after a member name")
		}
		p.space()
		member, err := p.value(depth + 1)
		if err != nil {
			return v, err
		}
		p.members = append(p.members, Member{name, member})
		p.space()
		switch {
		case p.take('}'):
			v.Members = slices.Clone(p.members[first:])
			p.members = p.members[:first]
			return v, nil
		case !p.take(','):
			return v, p.fail("no comma or closing brace after a member")
		}
	}
}

func (p *parser) array(depth int) (Value, error) {
	v := Value{Kind: Array}
	p.at++
	p.space()
	if p.take(']') {
		return v, nil
	}
	for first := len(p.elements); ; {
		p.space()
		element, err := p.value(depth + 1)
		if err != nil {
			return v, err
		}
		p.elements = append(p.elements, element)
		p.space()
		switch {
		case p.take(']'):
			v.Elements = slices.Clone(p.elements[first:])
			p.elements = p.elements[:first]
			return v, nil
		case !p.take(','):
			return v, p.fail("no comma or closing bracket after an element")
		}
	}
}
