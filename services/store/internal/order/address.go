package order

import "strings"

// checkAddress says what is wrong with a mail address, or "". It takes what every mail server
// takes: a dot-atom of ASCII, an @, and a domain name with at least one dot. The wider
// grammar of net/mail (comments, groups, quoted and over-long local parts, display names) is
// refused, because a mail that nobody delivers helps nobody.
func checkAddress(a string) string {
	local, domain, found := cutLast(a, "@")
	switch {
	case a == "":
		return "is required"
	case len(a) > 254:
		return "must not be longer than 254 characters"
	case !ascii(a):
		return "must be an ASCII address; write an international domain in its xn-- form"
	case strings.HasPrefix(local, `"`):
		return "must not have a quoted local part"
	case !found || !dotAtom(local):
		return "must be a mail address such as ada@example.com"
	case len(local) > 64:
		return "must not have more than 64 characters before the @"
	case !domainName(domain):
		return "must end in a domain name such as example.com"
	}
	return ""
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

func ascii(s string) bool {
	for i := range len(s) {
		if s[i] >= 0x80 {
			return false
		}
	}
	return true
}

// dotAtom: RFC 5322 section 3.2.3, atoms of atext separated by single dots.
func dotAtom(s string) bool {
	for atom := range strings.SplitSeq(s, ".") {
		if atom == "" {
			return false
		}
		for i := range len(atom) {
			if !letterOrDigit(atom[i]) && !strings.ContainsRune("!#$%&'*+-/=?^_`{|}~", rune(atom[i])) {
				return false
			}
		}
	}
	return true
}

// domainName: at least two labels of letters, digits and inner hyphens, the last not all digits.
func domainName(s string) bool {
	labels := strings.Split(s, ".")
	if len(labels) < 2 || digits(labels[len(labels)-1]) {
		return false
	}
	for _, label := range labels {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		for i := range len(label) {
			if !letterOrDigit(label[i]) && label[i] != '-' {
				return false
			}
		}
	}
	return true
}

func letterOrDigit(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}
