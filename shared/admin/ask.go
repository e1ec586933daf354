package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/pillarbox/pillarbox/shared/httpserver"
)

// Refusal is an answer other than 200.
type Refusal struct {
	Status int
	Detail string // of the problem document; without one the status in words
}

func (r *Refusal) Error() string { return r.Detail }

// Ask puts a question to an admin port below OperatorPath, as who, and reads the answer, of which it takes at
// most limit bytes. A question that is not nil is sent as JSON. A *Refusal is the port's own word.
func Ask[T any](
	ctx context.Context, client *http.Client, who, method, address string, question any, limit int64,
) (v T, err error) {
	var body []byte
	if question != nil {
		if body, err = json.Marshal(question); err != nil {
			return v, fmt.Errorf("encode question: %w", err)
		}
	}
	request, err := http.NewRequestWithContext(ctx, method, address, bytes.NewReader(body))
	if err != nil {
		return v, err
	}
	request.Header.Set(HeaderOperator, url.PathEscape(who))
	if question != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	answer, err := client.Do(request)
	if err != nil {
		return v, err
	}
	defer func() { _ = answer.Body.Close() }() // only read from
	text, err := io.ReadAll(io.LimitReader(answer.Body, limit))
	if err != nil {
		return v, fmt.Errorf("read answer: %w", err)
	}
	if answer.StatusCode != http.StatusOK {
		refusal := &Refusal{answer.StatusCode, answer.Status}
		var p httpserver.Problem
		if json.Unmarshal(text, &p) == nil && p.Detail != "" {
			refusal.Detail = p.Detail
		}
		return v, refusal
	}
	if err := json.Unmarshal(text, &v); err != nil {
		return v, fmt.Errorf("read answer: %w", err)
	}
	return v, nil
}
