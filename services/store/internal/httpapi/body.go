package httpapi

import (
	"bytes"
	"errors"
	"io"
	"mime"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pillarbox/pillarbox/shared/httpserver"
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
	release = func() {}
	if r.ContentLength > MaxBody {
		return nil, release, bodyProblem(&http.MaxBytesError{Limit: MaxBody})
	}
	if empty && r.ContentLength == 0 { // whatever its type is said to be
		return nil, release, nil
	}
	if problem := checkContentType(r.Header); problem != nil {
		return nil, release, problem
	}
	var charged int64
	release = func() { a.budget.left.Add(charged) }
	limited := http.MaxBytesReader(w, r.Body, MaxBody)
	var buffer bytes.Buffer
	for chunk := int64(4 << 10); ; chunk *= 2 {
		if !a.budget.take(chunk) {
			return nil, release, &httpserver.Problem{
				Status: http.StatusServiceUnavailable, Detail: "too many large requests at once", RetryAfter: time.Second,
			}
		}
		charged += chunk
		_, err := io.CopyN(&buffer, limited, chunk)
		if errors.Is(err, io.EOF) {
			return buffer.Bytes(), release, nil
		}
		if err != nil {
			return nil, release, bodyProblem(err)
		}
	}
}

func bodyProblem(err error) *httpserver.Problem {
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return &httpserver.Problem{
			Status: http.StatusRequestEntityTooLarge, Detail: "the body is larger than 1 MiB",
		}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &httpserver.Problem{Status: http.StatusRequestTimeout, Detail: "the body came too slowly"}
	}
	return &httpserver.Problem{Status: http.StatusBadRequest, Detail: "the body ends early"}
}

func checkContentType(h http.Header) *httpserver.Problem {
	refuse := func(detail string) *httpserver.Problem {
		return &httpserver.Problem{Status: http.StatusUnsupportedMediaType, Detail: detail}
	}
	if coding := h.Get("Content-Encoding"); coding != "" && !strings.EqualFold(coding, "identity") {
		return refuse("the body must not be compressed")
	}
	kind, parameters, err := mime.ParseMediaType(h.Get("Content-Type"))
	if err != nil || kind != "application/json" || len(h.Values("Content-Type")) > 1 {
		return refuse("Content-Type must be application/json")
	}
	if charset, given := parameters["charset"]; given && !strings.EqualFold(charset, "utf-8") {
		return refuse("the charset must be utf-8")
	}
	return nil
}
