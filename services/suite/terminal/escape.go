package terminal

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

const (
	// NoLimit is for text of any length.
	NoLimit = -1
	// Cell is how many characters of a foreign text stand in a table.
	Cell = 60
)

// Printable returns text in one line in which nothing steers a terminal: control and invisible characters and
// bytes that are no UTF-8 are escaped. It ends in … after limit characters.
func Printable(text string, limit int) string { return Escape(text, limit, "") }

// Escape is Printable with characters that stay as they are.
func Escape(text string, limit int, keep string) string {
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
