package httpapi

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pillarbox/pillarbox/shared/httpserver"
)

// The content types of bodies.
const (
	typeJSON   = "application/json"
	typeNDJSON = "application/x-ndjson"
)

// budget bounds the memory that all bodies take together. Clients are charged as their bytes
// arrive, so that slow ones do not hold what they have not sent.
type budget struct{ left atomic.Int64 }

func newBudget(n int64) *budget {
	b := &budget{}
	b.left.Store(n)
	return b
}

func (b *budget) take(n int64) bool {
	if b.left.Add(-n) >= 0 {
		return true
	}
	b.left.Add(n)
	return false
}

// readJSON reads the body of a request that must be JSON. release gives the memory back; it is
// never nil. With empty set, a request may also have no body at all.
func (a *api) readJSON(w http.ResponseWriter, r *http.Request, empty bool) (
	body []byte, release func(), problem *httpserver.Problem,
) {
	if empty && r.ContentLength == 0 { // whatever its type is said to be
		return nil, func() {}, nil
	}
	_, body, release, problem = a.readBody(w, r, MaxBody, typeJSON)
	return body, release, problem
}

// readBody reads a body of at most limit bytes and of one of the types, and says which.
func (a *api) readBody(w http.ResponseWriter, r *http.Request, limit int64, types ...string) (
	kind string, body []byte, release func(), problem *httpserver.Problem,
) {
	release = func() {}
	if r.ContentLength > limit {
		return "", nil, release, bodyProblem(&http.MaxBytesError{Limit: limit})
	}
	if kind, problem = checkContentType(r.Header, types); problem != nil {
		return "", nil, release, problem
	}
	var charged int64
	release = func() { a.budget.left.Add(charged) }
	limited := http.MaxBytesReader(w, r.Body, limit)
	var buffer bytes.Buffer
	for chunk := int64(4 << 10); ; chunk *= 2 {
		if !a.budget.take(chunk) {
			return "", nil, release, &httpserver.Problem{
				Status: http.StatusServiceUnavailable, Detail: "too many large requests at once", RetryAfter: time.Second,
			}
		}
		charged += chunk
		buffer.Grow(bytes.MinRead + int(min(chunk, max(r.ContentLength-int64(buffer.Len()), 0))))
		_, err := io.CopyN(&buffer, limited, chunk)
		if errors.Is(err, io.EOF) {
			return kind, buffer.Bytes(), release, nil
		}
		if err != nil {
			return "", nil, release, bodyProblem(err)
		}
	}
}

func bodyProblem(err error) *httpserver.Problem {
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return tooLarge("the body", large.Limit)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &httpserver.Problem{Status: http.StatusRequestTimeout, Detail: "the body came too slowly"}
	}
	return &httpserver.Problem{Status: http.StatusBadRequest, Detail: "the body ends early"}
}

func tooLarge(what string, limit int64) *httpserver.Problem {
	return &httpserver.Problem{
		Status: http.StatusRequestEntityTooLarge, Detail: fmt.Sprintf("%s is larger than %d bytes", what, limit),
	}
}

// checkContentType says which of the types the body has.
func checkContentType(h http.Header, types []string) (kind string, problem *httpserver.Problem) {
	refuse := func(detail string) (string, *httpserver.Problem) {
		return "", &httpserver.Problem{Status: http.StatusUnsupportedMediaType, Detail: detail}
	}
	if coding := h.Get("Content-Encoding"); coding != "" && !strings.EqualFold(coding, "identity") {
		return refuse("the body must not be compressed")
	}
	kind, parameters, err := mime.ParseMediaType(h.Get("Content-Type"))
	if err != nil || !slices.Contains(types, kind) || len(h.Values("Content-Type")) > 1 {
		return refuse("Content-Type must be " + strings.Join(types, " or "))
	}
	if charset, given := parameters["charset"]; given && !strings.EqualFold(charset, "utf-8") {
		return refuse("the charset must be utf-8")
	}
	return kind, nil
}
