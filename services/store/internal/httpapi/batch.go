package httpapi

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pillarbox/pillarbox/services/store/internal/intake"
	"github.com/pillarbox/pillarbox/shared/httpserver"
	"github.com/pillarbox/pillarbox/shared/logs"
)

// MaxBatch is the largest number of orders in a batch.
const MaxBatch = 1000

// What became of an order of a batch.
const (
	created  = "created"
	replayed = "replayed"
	refused  = "refused"
)

// resultView is one result of a batch.
type resultView struct {
	Result     string              `json:"result"`
	Order      json.RawMessage     `json:"order,omitempty"`
	Problem    *httpserver.Problem `json:"problem,omitempty"`
	RetryAfter int                 `json:"retry_after,omitempty"`
}

func newBatched(reg prometheus.Registerer) (*prometheus.CounterVec, error) {
	batched := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "batch_orders_total", Help: "Orders that came in batches, by what became of them.",
	}, []string{"result"})
	if err := reg.Register(batched); err != nil {
		return nil, fmt.Errorf("httpapi: %w", err)
	}
	return batched, nil
}

// batch is POST /orders/batch. The whole body is read and checked before the first order is stored.
func (a *api) batch(w http.ResponseWriter, r *http.Request) {
	if len(r.Header.Values("Idempotency-Key")) > 0 {
		badRequest(`a batch has no Idempotency-Key; each order has its own: {"idempotency_key": "…", "order": {…}}`).Write(w)
		return
	}
	kind, body, release, p := a.readBody(w, r, a.batchBody, typeJSON, typeNDJSON)
	defer release()
	if p != nil {
		p.Write(w)
		return
	}
	entries, p := decodeBatch(kind, body)
	if p != nil {
		p.Write(w)
		return
	}
	var items []intake.Item
	for _, e := range entries {
		if e.problem == nil {
			items = append(items, e.item)
		}
	}
	outcomes := a.Writer.PlaceAll(r.Context(), items, trace(r))
	results := make([]resultView, len(entries))
	var unknown error
	for i, e := range entries {
		if e.problem == nil {
			var err error
			if results[i], err = resultOf(outcomes[0], e.item.Keyed != nil); err != nil {
				unknown = err
			}
			outcomes = outcomes[1:]
		} else {
			results[i] = refusal(*e.problem)
		}
		a.batched.WithLabelValues(results[i].Result).Inc()
	}
	if unknown != nil && r.Context().Err() == nil {
		a.Log.ErrorContext(r.Context(), "orders of a batch failed, the last of them so", logs.Error, unknown)
	}
	writeResults(w, kind, results)
}

// resultOf shows an outcome. It returns the outcome's error when no list knows it.
func resultOf(o intake.Outcome, keyed bool) (resultView, error) {
	if o.Err != nil {
		p, listed := placementProblem(o.Err, keyed)
		if listed {
			return refusal(p), nil
		}
		return refusal(p), o.Err
	}
	v := resultView{Result: created, Order: o.Answer.Body}
	if o.Answer.Replayed {
		v.Result = replayed
	}
	return v, nil
}

func refusal(p httpserver.Problem) resultView {
	p.Title = http.StatusText(p.Status)
	return resultView{Result: refused, Problem: &p, RetryAfter: int(math.Ceil(p.RetryAfter.Seconds()))}
}

// writeResults answers in the form that the batch came in. The results are written one after
// another: together they are as large as the batch.
func writeResults(w http.ResponseWriter, kind string, results []resultView) {
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Cache-Control", "private, no-cache")
	w.WriteHeader(http.StatusOK)
	out := bufio.NewWriterSize(w, 32<<10)
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	var errs []error // a client that is gone
	before, between, after := "", "", ""
	if kind == typeJSON {
		before, between, after = summary(results), ",", "]}\n"
	}
	write := func(text string) {
		_, err := io.WriteString(out, text)
		errs = append(errs, err)
	}
	write(before)
	for i, v := range results {
		if i > 0 {
			write(between)
		}
		errs = append(errs, encoder.Encode(v))
	}
	write(after)
	_ = errors.Join(append(errs, out.Flush())...)
}

// summary begins the answer: how many of each, then the results.
func summary(results []resultView) string {
	count := map[string]int{}
	for _, v := range results {
		count[v.Result]++
	}
	return fmt.Sprintf(`{"created":%d,"replayed":%d,"refused":%d,"results":[`, count[created], count[replayed], count[refused])
}
