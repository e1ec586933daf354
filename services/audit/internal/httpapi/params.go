package httpapi

import (
	"encoding/base64"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/pillarbox/pillarbox/services/audit/internal/auditlog"
)

const (
	defaultLimit = 50
	maxLimit     = 200
	maxOrder     = 64 // bytes: no event has a longer subject
)

// problems are what is wrong with a request's parameters, one line each.
type problems []string

func (p *problems) add(name, what string) { *p = append(*p, name+": "+what) }

func (p problems) String() string { return strings.Join(p, "; ") }

// parse reads the query string and names everything that is wrong with it. An unknown
// name is refused: a misspelt "order" would list everybody's entries.
func parse(raw string) (q auditlog.Query, wrong problems) {
	q.Limit = defaultLimit
	values, err := url.ParseQuery(raw)
	if err != nil {
		wrong.add("query", "not URL-encoded")
		return q, wrong
	}
	names := make([]string, 0, len(values))
	for name := range values {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if len(values[name]) > 1 {
			wrong.add(clip(name), "given more than once")
			continue
		}
		switch value := values.Get(name); name {
		case "order":
			if !printable(value) || len(value) > maxOrder {
				wrong.add(name, fmt.Sprintf("must be 1 to %d printable ASCII characters", maxOrder))
			}
			q.Order = value
		case "limit":
			limit, err := strconv.Atoi(value)
			if err != nil || limit < 1 || limit > maxLimit {
				wrong.add(name, fmt.Sprintf("must be a whole number from 1 to %d", maxLimit))
			}
			q.Limit = limit
		case "after":
			p, ok := position(value)
			if !ok {
				wrong.add(name, `must be the "next" of an earlier page`)
			}
			q.After = p
		default:
			wrong.add(clip(name), "no such parameter (order, limit and after are)")
		}
	}
	return q, wrong
}

func printable(s string) bool {
	outside := func(r rune) bool { return r <= ' ' || r > '~' }
	return s != "" && strings.IndexFunc(s, outside) < 0
}

// clip keeps a hostile name out of the answer: it is quoted and short.
func clip(name string) string { return strconv.QuoteToASCII(name[:min(len(name), 32)]) }

// cursor hides a position from clients, who are not to compute with it.
func cursor(position int64) string {
	return base64.RawURLEncoding.EncodeToString(strconv.AppendInt([]byte("p"), position, 10))
}

// position is the inverse of cursor.
func position(cursor string) (int64, bool) {
	text, err := base64.RawURLEncoding.DecodeString(cursor)
	if err != nil || len(text) < 2 || text[0] != 'p' {
		return 0, false
	}
	p, err := strconv.ParseInt(string(text[1:]), 10, 64)
	return p, err == nil && p > 0
}
