package letter

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Lengths in characters of what is shown in one line.
const (
	maxName    = 200
	maxSubject = 40 // of a reference within a subject
	shortID    = 8
)

// clean makes one harmless line of foreign text: control characters and line
// separators become spaces, invisible direction marks vanish (they can make
// "€1" read as "1€" or hide an address), runs of space become one.
func clean(s string) string {
	s = strings.ToValidUTF8(s, string(utf8.RuneError))
	s = strings.Map(func(r rune) rune {
		switch {
		case unicode.IsControl(r), r == '\u2028', r == '\u2029':
			return ' '
		case r >= '\u202a' && r <= '\u202e', r >= '\u2066' && r <= '\u2069', r == '\u200e', r == '\u200f':
			return -1
		}
		return r
	}, s)
	return strings.Join(strings.Fields(s), " ")
}

// clip shortens s to most characters.
func clip(s string, most int) string {
	if utf8.RuneCountInString(s) <= most {
		return s
	}
	return strings.TrimSpace(string([]rune(s)[:most-1])) + "…"
}

// headerText breaks up what a reader would take for an encoded word (RFC 2047),
// which plain ASCII text can spell, since only other text is encoded.
func headerText(s string) string { return strings.ReplaceAll(s, "=?", "= ?") }

// short is what a person calls the order: its reference, or the end of its id
// (the beginning of a UUIDv7 is the time, alike for all orders of a minute).
func short(id, reference string) string {
	if reference != "" {
		return clip(reference, maxSubject)
	}
	if len(id) > shortID {
		return id[len(id)-shortID:]
	}
	return id
}
