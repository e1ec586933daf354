package order

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/language"
)

// checkText says what is wrong with a text of at most limit characters (code points), or "".
func checkText(s string, limit int) string {
	switch {
	case utf8.RuneCountInString(s) > limit:
		return fmt.Sprintf("must not be longer than %d characters", limit)
	case strings.ContainsFunc(s, controls):
		return "must not contain control characters"
	}
	return ""
}

// controls are the characters that may end a line or turn the text around them: they have no
// place in a mail header or a log. Joiners and marks stay allowed, since names need them.
func controls(r rune) bool {
	switch {
	case unicode.IsControl(r), r == '\u2028', r == '\u2029': // C0, DEL, C1, line and paragraph separator
		return true
	case r >= '\u202a' && r <= '\u202e', r >= '\u2066' && r <= '\u2069': // directional embedding, override and isolate
		return true
	}
	return false
}

// checkLocale says what is wrong with a BCP 47 tag, or "". A well-formed tag with a subtag
// that we do not know is fine: templates fall back.
func checkLocale(tag string) string {
	const wrong = `must be a language tag such as "en" or "de-AT"`
	if tag == "" {
		return ""
	}
	if len(tag) > 35 || strings.ContainsFunc(tag, func(r rune) bool {
		return r != '-' && (r >= utf8.RuneSelf || !letterOrDigit(byte(r)))
	}) {
		return wrong
	}
	var unknown language.ValueError
	if _, err := language.Parse(tag); err != nil && !errors.As(err, &unknown) {
		return wrong
	}
	return ""
}
