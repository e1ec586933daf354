package queue

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

const (
	noLimit = -1
	cell    = 60 // characters of a foreign text in a table
)

// printable returns text in one line in which nothing steers a terminal: control and invisible characters and
// bytes that are no UTF-8 are escaped. It ends in … after limit characters.
func printable(text string, limit int) string { return escape(text, limit, "") }

// escape is printable with characters that stay as they are.
func escape(text string, limit int, keep string) string {
	var b strings.Builder
	shown := 0
	for i, r := range text {
		if shown == limit {
			b.WriteString("…")
			break
		}
		shown++
		switch {
		case r == utf8.RuneError && !strings.HasPrefix(text[i:], "\uFFFD"):
			fmt.Fprintf(&b, `\x%02x`, text[i])
		case unicode.IsPrint(r) || strings.ContainsRune(keep, r):
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case r < 0x100:
			fmt.Fprintf(&b, `\x%02x`, r)
		default:
			fmt.Fprintf(&b, `\u{%x}`, r)
		}
	}
	return b.String()
}

// escapeJSON escapes in encoded JSON what a terminal would obey; JSON itself only does so below U+0020. The value
// stays the same, since such characters stand only in strings.
func escapeJSON(encoded []byte) []byte {
	var b strings.Builder
	for _, r := range string(encoded) {
		switch {
		case r == '\n' || unicode.IsPrint(r):
			b.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return []byte(b.String())
}
