package e2e_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/suite/e2e"
)

// element is one order of a batch, under a key of its own.
type element struct {
	Key   string         `json:"idempotency_key"`
	Order map[string]any `json:"order"`
}

// verdict is what the store says of an element.
type verdict struct {
	Result  string
	Order   e2e.Order
	Problem json.RawMessage
}

var shop = http.Client{Timeout: 30 * time.Second}

// post sends a body to a store and returns the status and the answer.
func post(t *testing.T, address, kind string, body []byte) (int, []byte) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, address, bytes.NewReader(body))
	require.NoError(t, err)
	request.Header.Set("Content-Type", kind)
	answer, err := shop.Do(request)
	require.NoError(t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	return answer.StatusCode, text
}

// sendBatch sends the elements as an array until none is refused because the store is busy: with keys, the whole
// batch may be sent again. It returns the last answer's results and how many orders the answers called new.
func sendBatch(t *testing.T, base string, elements []element) (results []verdict, created int) {
	t.Helper()
	body, err := json.Marshal(elements)
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		status, text := post(t, base+"/orders/batch", "application/json", body)
		if status == http.StatusServiceUnavailable {
			return false
		}
		require.Equal(t, http.StatusOK, status, "%s", text)
		var answer struct {
			Created, Refused int
			Results          []verdict
		}
		require.NoError(t, json.Unmarshal(text, &answer))
		results = answer.Results
		created += answer.Created
		return answer.Refused == 0
	}, deadline, 50*time.Millisecond)
	return results, created
}

func TestThousandOrdersInABatch(t *testing.T) {
	eachShape(t, func(t *testing.T, line e2e.Line) {
		t.Cleanup(shop.CloseIdleConnections)
		b := begin(t, line)
		elements := make([]element, 1000)
		for i := range elements {
			customer := fmt.Sprintf("customer%d@example.com", i%37)
			elements[i] = element{fmt.Sprintf("batch-%d", i), e2e.Body(customer, "EUR", 1+i%5, fmt.Sprintf("%d.99", i%20))}
		}
		results, created := sendBatch(t, line.Stores[0], elements)
		require.Len(t, results, len(elements))
		require.Equal(t, len(elements), created)
		for i, v := range results {
			require.Equal(t, fmt.Sprintf("customer%d@example.com", i%37), v.Order.Customer.Email, "results are in order")
			b.truth.Acknowledge(v.Order)
		}
		require.Equal(t, len(elements), b.truth.Count())

		// The same again at another store, as lines, with mistakes among them: nothing new but what is new.
		var lines bytes.Buffer
		encoder := json.NewEncoder(&lines)
		for i, e := range elements[:500] {
			require.NoError(t, encoder.Encode(e))
			if i%100 == 0 {
				lines.WriteString("{\n")
			}
		}
		require.NoError(t, encoder.Encode(e2e.Body("late@example.com", "JPY", 1, "1500")))
		status, text := post(t, line.Stores[len(line.Stores)-1]+"/orders/batch", "application/x-ndjson", lines.Bytes())
		require.Equal(t, http.StatusOK, status, "%s", text)
		count := map[string]int{}
		for decoder := json.NewDecoder(bytes.NewReader(text)); decoder.More(); {
			var v verdict
			require.NoError(t, decoder.Decode(&v))
			count[v.Result]++
			if v.Result != "refused" {
				b.truth.Acknowledge(v.Order)
			}
		}
		require.Equal(t, map[string]int{"replayed": 500, "refused": 5, "created": 1}, count, "%s", text)
		require.Equal(t, len(elements)+1, b.truth.Count())
		b.conserved(t)
	})
}

// Orders that were accepted before they were stored survive a stop of the store.
func TestAsyncIntakeIsFlushedAtAStop(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t, 1, "PILLARBOX_STORE_INTAKE=async", "PILLARBOX_STORE_INTAKE_FLUSH_EVERY=10s")
	t.Cleanup(shop.CloseIdleConnections)
	b := begin(t, cluster.Line())
	store := cluster.Services["store"][0]
	var ids []string
	for i := range 100 {
		body, err := json.Marshal(e2e.Body(fmt.Sprintf("customer%d@example.com", i%7), "EUR", 1, "3.99"))
		require.NoError(t, err)
		status, text := post(t, b.Stores[0]+"/orders", "application/json", body)
		require.Equal(t, http.StatusAccepted, status, "%s", text)
		var accepted struct{ Status, ID string }
		require.NoError(t, json.Unmarshal(text, &accepted))
		require.Equal(t, "accepted", accepted.Status)
		ids = append(ids, accepted.ID)
	}
	require.NoError(t, store.Stop())
	require.NoError(t, store.Run(b.ctx))
	for _, id := range ids {
		o, err := b.client.Get(b.ctx, id)
		require.NoError(t, err)
		b.truth.Acknowledge(o)
	}
	require.Equal(t, len(ids), b.truth.Count())
	b.conserved(t)
}
