package strictjson

import (
	"strconv"
	"strings"
	"unicode/utf16"
)

// number reads a number and keeps its text: what it means is for the reader of the field.
func (p *parser) number() (Value, error) {
	start := p.at
	p.take('-')
	switch {
	case p.take('0'):
	case p.digits():
	default:
		return Value{}, p.fail("no digit in a number")
	}
	if p.take('.') && !p.digits() {
		return Value{}, p.fail("no digit after a decimal point")
	}
	if p.take('e') || p.take('E') {
		_ = p.take('+') || p.take('-')
		if !p.digits() {
			return Value{}, p.fail("no digit in an exponent")
		}
	}
	return Value{Kind: Number, Text: p.text[start:p.at]}, nil
}

func (p *parser) digits() bool {
	start := p.at
	for c := p.next(); c >= '0' && c <= '9'; c = p.next() {
		p.at++
	}
	return p.at > start
}

// str reads a string, opening quote and all.
func (p *parser) str() (string, error) {
	p.at++
	start := p.at
	for p.at < len(p.text) { // without escapes the string is a part of the text
		switch c := p.text[p.at]; {
		case c == '"':
			p.at++
			return p.text[start : p.at-1], nil
		case c == '\\':
			return p.escaped(start)
		case c < ' ':
			return "", p.fail("control character in a string")
		}
		p.at++
	}
	return "", p.fail("string without end")
}

// escaped goes on from the first backslash.
func (p *parser) escaped(start int) (string, error) {
	var out strings.Builder
	out.WriteString(p.text[start:p.at])
	for p.at < len(p.text) {
		switch c := p.text[p.at]; {
		case c == '"':
			p.at++
			return out.String(), nil
		case c == '\\':
			r, err := p.escape()
			if err != nil {
				return "", err
			}
			out.WriteRune(r)
			continue
		case c < ' ':
			return "", p.fail("control character in a string")
		default:
			out.WriteByte(c)
		}
		p.at++
	}
	return "", p.fail("string without end")
}

func (p *parser) escape() (rune, error) {
	start := p.at
	p.at++
	c := p.next()
	if c == 'u' {
		p.at = start
		return p.unicode()
	}
	const names, runes = `"\/bfnrt`, "\"\\/\b\f\n\r\t"
	i := strings.IndexByte(names, c)
	if i < 0 || p.at == len(p.text) {
		p.at = start
		return 0, p.fail("unknown escape in a string")
	}
	p.at++
	return rune(runes[i]), nil
}

// unicode reads a \u escape, and a second one where the first is half a surrogate pair.
func (p *parser) unicode() (rune, error) {
	start := p.at
	r, ok := p.hex()
	if !ok {
		p.at = start
		return 0, p.fail("unknown escape in a string")
	}
	if !utf16.IsSurrogate(r) {
		return r, nil
	}
	low, ok := p.hex()
	pair := utf16.DecodeRune(r, low)
	if !ok || pair == '\ufffd' {
		p.at = start
		return 0, p.fail("half a surrogate pair in a string")
	}
	return pair, nil
}

func (p *parser) hex() (rune, bool) {
	if len(p.text)-p.at < 6 || p.text[p.at] != '\\' || p.text[p.at+1] != 'u' {
		return 0, false
	}
	n, err := strconv.ParseUint(p.text[p.at+2:p.at+6], 16, 16)
	if err != nil {
		return 0, false
	}
	p.at += 6
	return rune(n), true
}
