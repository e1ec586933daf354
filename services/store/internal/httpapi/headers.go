package httpapi

import (
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/pillarbox/pillarbox/services/store/internal/intake"
	"github.com/pillarbox/pillarbox/shared/httpserver"
)

const (
	maxIdempotencyKey = 255
	headerETag        = "Etag" // as net/http spells it: any other spelling is changed at each use
)

func badRequest(detail string) *httpserver.Problem {
	return &httpserver.Problem{Status: http.StatusBadRequest, Detail: detail}
}

// idempotencyKey is the request's key, "" without the header.
func idempotencyKey(h http.Header) (string, *httpserver.Problem) {
	values := h.Values("Idempotency-Key")
	if len(values) == 0 {
		return "", nil
	}
	if len(values) > 1 || !validKey(values[0]) {
		return "", badRequest("Idempotency-Key must come once, with 1 to 255 printable ASCII characters")
	}
	return values[0], nil
}

func validKey(key string) bool {
	printable := !strings.ContainsFunc(key, func(r rune) bool { return r < ' ' || r > '~' })
	return key != "" && len(key) <= maxIdempotencyKey && printable
}

// trace is what the events of this request say about it.
func trace(r *http.Request) intake.Trace {
	t := intake.Trace{CorrelationID: httpserver.RequestID(r.Context())}
	if parent := r.Header.Values("Traceparent"); len(parent) == 1 && validTraceparent(parent[0]) {
		t.Traceparent = parent[0]
	}
	return t
}

// validTraceparent: version 00 of W3C Trace Context, 00-<32 hex>-<16 hex>-<2 hex>. Others are left out, as it asks.
func validTraceparent(s string) bool {
	parts := strings.Split(s, "-")
	if len(parts) != 4 || parts[0] != "00" || len(parts[1]) != 32 || len(parts[2]) != 16 || len(parts[3]) != 2 {
		return false
	}
	zero := func(s string) bool { return strings.Trim(s, "0") == "" }
	return !strings.ContainsFunc(s, func(r rune) bool {
		return r != '-' && (r < '0' || r > '9') && (r < 'a' || r > 'f')
	}) && !zero(parts[1]) && !zero(parts[2])
}

func etag(version int64) string { return `"` + strconv.FormatInt(version, 10) + `"` }

// tags is a parsed If-Match or If-None-Match.
type tags struct {
	any          bool
	strong, weak []string // with their quotes
}

// ifMatch reads If-Match; match is nil without the header.
func ifMatch(h http.Header) (match func(version int64) bool, problem *httpserver.Problem) {
	values := h.Values("If-Match")
	if len(values) == 0 {
		return nil, nil
	}
	t, ok := parseTags(values)
	if !ok {
		return nil, badRequest(`If-Match must be a list of entity tags such as "3", or *`)
	}
	// Strong comparison: a weak tag never matches (RFC 9110 section 8.8.3.2).
	return func(version int64) bool { return t.any || slices.Contains(t.strong, etag(version)) }, nil
}

// notModified reports that the client has this version. A header that cannot be read does not count.
func notModified(h http.Header, version int64) bool {
	values := h.Values("If-None-Match")
	t, ok := parseTags(values)
	if len(values) == 0 || !ok {
		return false
	}
	return t.any || slices.Contains(t.strong, etag(version)) || slices.Contains(t.weak, etag(version))
}

func parseTags(values []string) (t tags, ok bool) {
	rest := strings.TrimSpace(strings.Join(values, ","))
	if rest == "*" {
		return tags{any: true}, true
	}
	for {
		rest = strings.TrimLeft(rest, " \t")
		weak := strings.HasPrefix(rest, "W/")
		rest = strings.TrimPrefix(rest, "W/")
		if !strings.HasPrefix(rest, `"`) {
			return t, false
		}
		end := strings.IndexByte(rest[1:], '"')
		if end < 0 {
			return t, false
		}
		tag := rest[:end+2]
		if weak {
			t.weak = append(t.weak, tag)
		} else {
			t.strong = append(t.strong, tag)
		}
		rest = strings.TrimLeft(rest[end+2:], " \t")
		if rest == "" {
			return t, true
		}
		if rest[0] != ',' {
			return t, false
		}
		rest = rest[1:]
	}
}
