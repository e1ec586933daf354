package events

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// longString is the length in bytes from which on a string is read here and not by encoding/json, which looks at each
// byte of a mail's body six times before it is a string.
const longString = 4 << 10

// lifted is a JSON text without its long strings.
type lifted struct {
	rest  []byte   // with a token in the place of each
	mark  string   // begins each token; nobody can guess it
	long  [][]byte // the strings as they stood, without quotes
	first int      // where the first token stands in rest
}

// lift takes the long strings out. What is no JSON with them is none without.
func lift(data []byte) lifted {
	var l lifted
	done, at := 0, 0
	for {
		open := bytes.IndexByte(data[at:], '"')
		if open < 0 {
			break
		}
		open += at + 1
		end := closing(data, open)
		if end < 0 {
			break
		}
		if end-open >= longString {
			if l.long == nil {
				l.mark, l.first = rand.Text(), open
			}
			l.rest = append(append(l.rest, data[done:open]...), l.mark+strconv.Itoa(len(l.long))...)
			l.long, done = append(l.long, data[open:end]), end
		}
		at = end + 1
	}
	l.rest = append(l.rest, data[done:]...)
	return l
}

// closing returns where the string that begins at open ends, or -1.
func closing(data []byte, open int) int {
	for at := open; ; at++ {
		n := bytes.IndexByte(data[at:], '"')
		if n < 0 {
			return -1
		}
		at += n
		escapes := 0
		for data[at-1-escapes] == '\\' { // ends at the quote before open
			escapes++
		}
		if escapes%2 == 0 {
			return at
		}
	}
}

// mailRequest decodes a mail request of which the long strings are bodies. When it is anything else, or anything is
// wrong with it, ok is false and encoding/json is to say what.
func (l *lifted) mailRequest(data []byte) (e Event, ok bool) {
	e, err := open(l.rest)
	if err != nil || !utf8.Valid(l.rest) || e.Type != TypeMailRequested {
		return Event{}, false
	}
	var m MailRequest
	if json.Unmarshal(e.Data, &m) != nil {
		return Event{}, false
	}
	put := 0
	for _, body := range []*string{&m.Text, &m.HTML} {
		index, is := strings.CutPrefix(*body, l.mark)
		if !is {
			if strings.ContainsFunc(*body, forbidden) {
				return Event{}, false
			}
			continue
		}
		n, err := strconv.Atoi(index)
		if err != nil {
			return Event{}, false
		}
		if *body, ok = unquote(l.long[n]); !ok {
			return Event{}, false
		}
		put++
	}
	if put != len(l.long) || m.sound() != nil {
		return Event{}, false
	}
	// All tokens stand in the body, so it begins where it did, and ends later by what was taken out.
	start := l.first - bytes.Index(e.Data, []byte(l.mark))
	end := start + len(e.Data) + len(data) - len(l.rest)
	e.Data, e.parsed = data[start:end:end], m
	return e, true
}

// unquote returns what a JSON string stands for. ok is false when it is none, when it is not UTF-8, and when it has
// characters that no body may have. Like encoding/json it puts U+FFFD in the place of half a surrogate pair.
func unquote(s []byte) (text string, ok bool) {
	var out strings.Builder
	out.Grow(len(s))
	done := 0 // of s
	for at := 0; ; {
		for at < len(s) && ordinary[s[at]] {
			at++
		}
		if at == len(s) {
			out.Write(s[done:])
			return out.String(), true
		}
		if s[at] != '\\' {
			r, size := utf8.DecodeRune(s[at:])
			if r == utf8.RuneError && size == 1 || unicode.IsControl(r) {
				return "", false
			}
			at += size
			continue
		}
		r, size := escaped(s[at:])
		if size == 0 || forbidden(r) {
			return "", false
		}
		out.Write(s[done:at])
		out.WriteRune(r)
		at += size
		done = at
	}
}

// ordinary are the bytes that stand for themselves in a JSON string.
var ordinary = func() (is [256]bool) {
	for c := ' '; c <= '~'; c++ {
		is[c] = c != '\\'
	}
	return is
}()

// escaped reads an escape, two when they are one character. size is 0 when s does not begin with one.
func escaped(s []byte) (r rune, size int) {
	if len(s) < 2 {
		return 0, 0
	}
	if n := strings.IndexByte(`"\/bfnrt`, s[1]); n >= 0 {
		return rune("\"\\/\b\f\n\r\t"[n]), 2
	}
	r = unit(s)
	switch {
	case r < 0:
		return 0, 0
	case !utf16.IsSurrogate(r):
		return r, 6
	}
	if r = utf16.DecodeRune(r, unit(s[6:])); r == utf8.RuneError {
		return r, 6
	}
	return r, 12
}

// unit reads a \u escape; it is -1 when s does not begin with one.
func unit(s []byte) rune {
	if len(s) < 6 || s[0] != '\\' || s[1] != 'u' {
		return -1
	}
	n, err := strconv.ParseUint(string(s[2:6]), 16, 16) // takes no sign and no underscore
	if err != nil {
		return -1
	}
	return rune(n)
}
