package letter

// mostQuoted is the length of a line before the "=" that continues it.
const mostQuoted = 75

// appendQuoted appends text in quoted-printable (RFC 2045, section 6.7) with its line breaks, whichever they are, as CRLF. The
// standard library's writer makes the same of it at a third of the speed, byte by byte, and takes the break of "\r", a character
// that needs encoding, "\n" for one.
func appendQuoted(out []byte, text string) []byte {
	line := 0 // length of the present line
	for i := 0; ; i++ {
		run := i
		for i < len(text) && plain[text[i]] {
			i++
		}
		for line+i-run > mostQuoted {
			n := mostQuoted - line
			out = append(append(out, text[run:run+n]...), "=\r\n"...)
			run, line = run+n, 0
		}
		out, line = append(out, text[run:i]...), line+i-run
		if i == len(text) {
			return endQuoted(out, line)
		}
		c := text[i]
		if c != '\r' && c != '\n' {
			out, line = encodeQuoted(out, line, c)
			continue
		}
		out, line = append(endQuoted(out, line), "\r\n"...), 0
		if c == '\r' && i+1 < len(text) && text[i+1] == '\n' {
			i++
		}
	}
}

func encodeQuoted(out []byte, line int, c byte) ([]byte, int) {
	if line > mostQuoted-3 {
		out, line = append(out, "=\r\n"...), 0
	}
	const hex = "0123456789ABCDEF"
	return append(out, '=', hex[c>>4], hex[c&15]), line + 3
}

// endQuoted ends a line, which must not be with white space: that may be lost on the way.
func endQuoted(out []byte, line int) []byte {
	if line > 0 {
		if last := out[len(out)-1]; last == ' ' || last == '\t' {
			out, _ = encodeQuoted(out[:len(out)-1], line-1, last)
		}
	}
	return out
}

// plain are the bytes that may stand for themselves within a line.
var plain = func() (plain [256]bool) {
	for c := range plain {
		plain[c] = c >= ' ' && c <= '~' && c != '=' || c == '\t'
	}
	return plain
}()
