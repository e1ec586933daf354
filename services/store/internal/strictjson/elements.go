package strictjson

// Element is one element of an array, as written, with where it begins.
type Element struct {
	Text   []byte
	Offset int
}

// Elements cuts the text of an array into its elements, at most limit of them, without making values of
// them: an array of any number of values is read with the memory of one element. Every element
// has yet to be parsed; when each of them is well-formed, so is the array. Its errors are *SyntaxError.
func Elements(text []byte, limit int) ([]Element, error) {
	fail := func(at int, detail string) ([]Element, error) { return nil, &SyntaxError{Offset: at, Detail: detail} }
	at := blank(text, 0)
	if at == len(text) || text[at] != '[' {
		return fail(at, "no array")
	}
	at++
	var found []Element
	if end := blank(text, at); end < len(text) && text[end] == ']' {
		at = end // an empty array
	} else {
		for {
			end := elementEnd(text, at)
			if end == len(text) {
				return fail(end, "array without end")
			}
			found = append(found, Element{text[at:end], at})
			if len(found) == limit {
				return found, nil
			}
			if at = end; text[at] == ']' {
				break
			}
			at++
		}
	}
	if at = blank(text, at+1); at < len(text) {
		return fail(at, "data after the JSON value")
	}
	return found, nil
}

func blank(text []byte, at int) int {
	for at < len(text) && (text[at] == ' ' || text[at] == '\t' || text[at] == '\n' || text[at] == '\r') {
		at++
	}
	return at
}

// elementEnd is where the comma or bracket is that ends the element at at, or the text's end.
func elementEnd(text []byte, at int) int {
	depth, quoted := 0, false
	for ; at < len(text); at++ {
		switch c := text[at]; {
		case quoted && c == '\\':
			at++ // whatever is escaped
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '[' || c == '{':
			depth++
		case depth == 0 && (c == ',' || c == ']'):
			return at
		case c == ']' || c == '}':
			depth--
		}
	}
	return len(text)
}
