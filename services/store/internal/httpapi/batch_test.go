package httpapi_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pillarbox/pillarbox/services/store/internal/httpapi"
	"github.com/pillarbox/pillarbox/services/store/internal/intake"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
	"github.com/pillarbox/pillarbox/shared/httpserver"
)

const ndjson = "application/x-ndjson"

// verdict is one result of a batch.
type verdict struct {
	Result     string
	Order      json.RawMessage
	Problem    *httpserver.Problem
	RetryAfter int `json:"retry_after"`
}

// short is the result, or the status of its problem with the pointers.
func (v verdict) short() string {
	if v.Problem == nil {
		return v.Result
	}
	text := fmt.Sprint(v.Problem.Status)
	for _, e := range v.Problem.Errors {
		text += " " + e.Pointer
	}
	return text
}

func (v verdict) order(t require.TestingT) (o view) {
	require.NoError(t, json.Unmarshal(v.Order, &o))
	return o
}

// batch sends the elements as an array or as lines and returns the results, compared with the description.
func (s *shop) batch(kind string, elements ...string) []verdict {
	s.t.Helper()
	body := "[" + strings.Join(elements, ",") + "]"
	if kind == ndjson {
		body = strings.Join(elements, "\n")
	}
	return s.do("POST", "/orders/batch", body, "Content-Type", kind).is(200).verdicts()
}

// verdicts are the results in an answer, whose counts are theirs.
func (a answer) verdicts() []verdict {
	a.t.Helper()
	var whole struct {
		Created, Replayed, Refused int
		Results                    []verdict
	}
	if a.header.Get("Content-Type") == ndjson {
		for line := range bytes.Lines(a.body) {
			var v verdict
			require.NoError(a.t, json.Unmarshal(line, &v), "%s", line)
			whole.Results = append(whole.Results, v)
		}
		return whole.Results
	}
	require.NoError(a.t, json.Unmarshal(a.body, &whole), "%s", a.body)
	count := map[string]int{}
	for _, v := range whole.Results {
		count[v.Result]++
	}
	require.Equal(a.t, [3]int{count["created"], count["replayed"], count["refused"]}, [3]int{whole.Created, whole.Replayed, whole.Refused})
	return whole.Results
}

// withKey is an element with a key of its own.
func withKey(key, order string) string {
	text, err := json.Marshal(key)
	if err != nil {
		panic(err) // a string always encodes
	}
	return `{"idempotency_key":` + string(text) + `,"order":` + order + `}`
}

func short(verdicts []verdict) (texts []string) {
	for _, v := range verdicts {
		texts = append(texts, v.short())
	}
	return texts
}

func TestBatch(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "store", func(t *testing.T, db *database.DB) {
		for _, kind := range []string{"application/json", ndjson} {
			s := open(t, db, func(c *intake.Config, _ *httpapi.Config) { c.Group = 4 })
			before := count(t, db, "orders")
			key := kind + " 1"
			results := s.batch(kind,
				tea,
				with(t, `:2,`, `:0,`),
				withKey(key, tea),
				withKey(key, tea),
				withKey(key, with(t, `:2,`, `:3,`)),
				`"tea"`,
				with(t, `"reference"`, `"Reference"`),
				withKey("", tea),
				`{"idempotency_key":7,"order":{"currency":"EUR","items":[]},"x":1}`,
				`{"order":`+tea+`}`,
				`{"idempotency_key":"only"}`,
				withKey(key+"x", tea),
				tea,
			)
			require.Equal(t, []string{
				"created", "422 /items/0/quantity", "created", "replayed", "422", "400 ", "400 /Reference",
				"400 /idempotency_key", "400 /idempotency_key /x /order/customer/email /order/items", "400 /idempotency_key",
				"422 /order/customer/email /order/currency /order/items", "created", "created",
			}, short(results))
			require.Equal(t, string(results[2].Order), string(results[3].Order))
			require.Equal(t, 4, count(t, db, "orders")-before)
			require.Equal(t, count(t, db, "orders"), count(t, db, "outbox"))
			for _, i := range []int{0, 2, 11, 12} {
				o := results[i].order(t)
				require.JSONEq(t, string(results[i].Order), string(s.do("GET", "/orders/"+o.ID, "").is(200).body))
			}

			// An order may be repeated either way, also after a restart.
			single := s.do("POST", "/orders", tea, "Idempotency-Key", key).is(201)
			require.Equal(t, "true", single.header.Get("Idempotency-Replayed"))
			require.JSONEq(t, string(results[2].Order), string(single.body))
			first := s.do("POST", "/orders", tea, "Idempotency-Key", kind).is(201)
			s.stop()
			again := open(t, db).batch(kind, withKey(kind, tea), withKey(key, tea))
			require.Equal(t, []string{"replayed", "replayed"}, short(again))
			require.JSONEq(t, string(first.body), string(again[0].Order))
			require.Equal(t, 5, count(t, db, "orders")-before)
		}
	})
}

func TestBatchesThatAreRefusedWhole(t *testing.T) {
	t.Parallel()
	db, _ := databasetest.SQLite(t, "store")
	s := open(t, db, func(_ *intake.Config, c *httpapi.Config) { c.BatchBody = 2 << 20 })
	post := func(body, kind string, header ...string) answer {
		return s.do("POST", "/orders/batch", body, append([]string{"Content-Type", kind}, header...)...)
	}
	const array = "application/json"
	for _, body := range []string{
		"", " ", "{}", tea, "[" + tea, "[" + tea + "}", "[" + tea + ",]", "[" + tea + "]x", "[" + tea + " " + tea + "]",
		"[" + tea + ",nul]", "[" + tea + ",{\"a\":\"\xff\"}]", "[" + tea + ",[1}]", "\ufeff[]",
	} {
		post(body, array).is(400)
	}
	problem := post("["+tea+","+tea[:len(tea)-1]+"x}]", array).is(400)
	require.Contains(t, string(problem.body), fmt.Sprintf("at byte %d", 2*len(tea)+1), "counted in the whole body")

	post("["+strings.Repeat(tea+",", 1000)+tea+"]", array).is(413)
	post(strings.Repeat(tea+"\n", 1001), ndjson).is(413)
	large := strings.Repeat(" ", 2<<20) + "[]"
	post(large, array).is(413)
	post(large, ndjson).is(413)
	post("["+tea+"]", array, "Idempotency-Key", "k").is(400)
	for _, kind := range []string{"-", "text/plain", "application/jsonl", array + "; charset=latin1", "multipart/form-data"} {
		post("["+tea+"]", kind).is(415)
	}
	post("["+tea+"]", array, "Content-Encoding", "gzip").is(415)
	require.Equal(t, "GET, HEAD, POST, PATCH", s.do("PUT", "/orders/batch", "[]").is(405).header.Get("Allow"))
	require.Zero(t, count(t, db, "orders"))

	require.Empty(t, s.batch(array))
	require.Empty(t, post("\n \r\n\t\n", ndjson).is(200).verdicts())
	require.Empty(t, post("", ndjson).is(200).verdicts())
	require.Len(t, s.batch(array+"; charset=utf-8", tea), 1)
}

// What is wrong with one line is that line's own, and blank ones do not count.
func TestLinesAreReadOneByOne(t *testing.T) {
	t.Parallel()
	db, _ := databasetest.SQLite(t, "store")
	s := open(t, db)
	results := s.batch(ndjson, tea+"\r", "", "{", tea+tea, "\"\xff\"", "["+tea, "  \t", tea+"]", " "+tea+" ", "\ufeff"+tea, "\x00", tea, "", "")
	require.Equal(t, []string{"created", "400", "400", "400", "400", "400", "created", "400", "400", "created"}, short(results))
	require.Contains(t, results[1].Problem.Detail, "no member name at byte 1")
	require.Equal(t, 3, count(t, db, "orders"))
}

// An element beyond a limit is refused for itself, in an array, too.
func TestLimitsOfOneElement(t *testing.T) {
	t.Parallel()
	db, _ := databasetest.SQLite(t, "store")
	deep := strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000)
	many := "[" + strings.Repeat("1,", 30_000) + "1]"
	wide := with(t, "Green tea", strings.Repeat("x", 1<<20))
	manyItems := with(t, `"items":[`, `"items":[`+strings.Repeat(`{},`, 4000))
	for _, kind := range []string{"application/json", ndjson} {
		s := open(t, db, func(c *intake.Config, _ *httpapi.Config) { c.MaxEvent = 900 })
		before := count(t, db, "orders")
		long := with(t, "Green tea", strings.Repeat("x", 200))
		both := strings.Replace(long, "Ada Lovelace", strings.Repeat("y", 200), 1)
		results := s.batch(kind, tea, deep, many, wide, tea, manyItems, long, both, tea)
		statuses := short(results)
		require.Len(t, results[5].Problem.Errors, 20)
		require.Contains(t, results[5].Problem.Detail, "more")
		statuses[5] = statuses[5][:3]
		require.Equal(t, []string{"created", "400", "422", "413", "created", "422", "created", "413", "created"}, statuses)
		require.Equal(t, 4, count(t, db, "orders")-before)
	}
}

// The answer to a batch must not be much larger than the batch.
func TestABatchOfMistakesHasABoundedAnswer(t *testing.T) {
	t.Parallel()
	db, _ := databasetest.SQLite(t, "store")
	s := open(t, db)
	element := `{"items":[` + strings.TrimSuffix(strings.Repeat("0,", 600), ",") + `]}`
	elements := make([]string, 1000)
	for i := range elements {
		elements[i] = element
	}
	a := s.do("POST", "/orders/batch", "["+strings.Join(elements, ",")+"]").is(200)
	require.Less(t, len(a.body), 3<<20)
	require.Len(t, a.verdicts(), 1000)
}

func TestWhatTheIntakeRefusesOfABatch(t *testing.T) {
	t.Parallel()
	db, _ := databasetest.SQLite(t, "store")
	s := open(t, db)
	for _, c := range []struct {
		err                    error
		plain, keyed, retryFor int
	}{
		{intake.ErrBacklog, 503, 503, 5}, {intake.ErrBusy, 503, 503, 1}, {intake.ErrUnavailable, 503, 503, 1},
		{intake.ErrUnknown, 500, 503, 1}, {errors.New("SELECT boom"), 500, 500, 0},
	} {
		s.refuse.Store(&c.err)
		results := s.batch(ndjson, tea, "x", withKey("k", tea))
		require.Equal(t, []string{fmt.Sprint(c.plain), "400", fmt.Sprint(c.keyed)}, short(results))
		require.Equal(t, c.retryFor, results[2].RetryAfter)
		require.Equal(t, c.plain == 503, results[0].RetryAfter > 0)
	}
	s.refuse.Store(nil)
	s.stop()
	require.Equal(t, []string{"503", "400 "}, short(s.batch("application/json", tea, "15")))
	require.Zero(t, count(t, db, "orders"))
}

func TestABatchTakesItsShareOfTheBodyBudget(t *testing.T) {
	t.Parallel()
	db, _ := databasetest.SQLite(t, "store")
	s := open(t, db, func(_ *intake.Config, c *httpapi.Config) { c.BodyBudget = 64 << 10 })
	fill := func(n int) string { return "[" + strings.Repeat(" ", n-2) + "]" }
	s.do("POST", "/orders/batch", fill(32<<10)).is(200)
	s.do("POST", "/orders/batch", fill(32<<10+1)).is(413) // it could never be read
}

func TestTwoBatchesWithTheSameKeys(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "store", func(t *testing.T, db *database.DB) {
		replicas := []*shop{open(t, db), open(t, db)}
		const n = 200
		var mu sync.Mutex
		created, ids := map[string]int{}, map[string]bool{}
		var clients sync.WaitGroup
		for c := range 4 {
			clients.Go(func() {
				var elements []string
				for i := range n { // half of them backwards
					if c >= 2 {
						i = n - 1 - i
					}
					elements = append(elements, withKey(fmt.Sprintf("k%d", i), tea))
				}
				for busy := true; busy; { // as a client does: the whole batch again
					busy = false
					for _, v := range replicas[c%2].batch("application/json", elements...) {
						if v.Problem != nil {
							require.Equal(t, 503, v.Problem.Status)
							busy = true
							continue
						}
						mu.Lock()
						ids[v.order(t).ID] = true
						if v.Result == "created" {
							created[v.order(t).ID]++
						}
						mu.Unlock()
					}
				}
			})
		}
		clients.Wait()
		require.Len(t, ids, n)
		for id, times := range created {
			require.Equal(t, 1, times, id)
		}
		require.NotEmpty(t, created)
		require.Equal(t, n, count(t, db, "orders"))
	})
}

// Of any mix of good and bad elements, in both forms and with any sizes of groups, exactly the good ones are
// stored, and each result belongs to its element.
func TestAnyMixStoresExactlyTheGoodOnes(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "store", func(t *testing.T, db *database.DB) {
		shops := []*shop{open(t, db)}
		for _, group := range []int{1, 3} {
			shops = append(shops, open(t, db, func(c *intake.Config, _ *httpapi.Config) { c.Group = group }))
		}
		run := 0
		rapid.Check(t, func(rt *rapid.T) {
			run++
			mix := drawMix(rt, run)
			s := shops[rapid.IntRange(0, len(shops)-1).Draw(rt, "shop")]
			before := count(t, db, "orders")
			results := s.batch(mix.kind, mix.elements...)
			require.Len(rt, results, len(mix.want))
			want := map[string]bool{}
			for i, v := range results {
				require.Equal(rt, mix.want[i], v.Result, "%d: %s: %s", i, mix.elements[i], v.short())
				if v.Problem == nil {
					require.Equal(rt, mix.references[i], v.order(rt).Reference)
					want[mix.references[i]] = true
				}
			}
			require.Equal(rt, len(want), count(t, db, "orders")-before)
			require.Equal(rt, want, references(t, db, run))
			require.Equal(rt, count(t, db, "orders"), count(t, db, "outbox"))
		})
	})
}

// mix is a batch, with what must become of each element.
type mix struct {
	kind       string
	elements   []string
	want       []string
	references []string // of the orders
}

func drawMix(rt *rapid.T, run int) mix {
	m := mix{kind: rapid.SampledFrom([]string{"application/json", ndjson}).Draw(rt, "kind")}
	bad := []string{`1`, `null`, `{}`, `[]`, `"x"`, `{"order":1}`, `{"idempotency_key":"k"}`, strings.Repeat("[", 50) + strings.Repeat("]", 50)}
	if m.kind == ndjson {
		bad = append(bad, `{`, `]`, `{"a":1,}`, "\xff", `"`, `x`)
	}
	firsts := map[string]string{} // the reference of each key's first order
	for i := range rapid.IntRange(0, 12).Draw(rt, "n") {
		reference := fmt.Sprintf("run %d item %d", run, i)
		order := strings.Replace(tea, "web-1001", reference, 1)
		key := fmt.Sprintf("run %d key %d", run, rapid.IntRange(0, 2).Draw(rt, "key"))
		add := func(element, want, reference string) {
			m.elements, m.want, m.references = append(m.elements, element), append(m.want, want), append(m.references, reference)
		}
		switch rapid.IntRange(0, 4).Draw(rt, "what") {
		case 0:
			add(order, "created", reference)
		case 1:
			add(rapid.SampledFrom(bad).Draw(rt, "bad"), "refused", "")
		case 2:
			add(strings.Replace(order, "EUR", "EUX", 1), "refused", "")
		case 3: // a key, its first order or another one than the first
			if firsts[key] == "" {
				firsts[key] = reference
				add(withKey(key, order), "created", reference)
			} else {
				add(withKey(key, order), "refused", "")
			}
		case 4: // a repetition, when there is something to repeat
			if first := firsts[key]; first != "" {
				add(withKey(key, strings.Replace(tea, "web-1001", first, 1)), "replayed", first)
			}
		}
	}
	return m
}

// references are those of the orders of a run.
func references(t *testing.T, db *database.DB, run int) map[string]bool {
	t.Helper()
	rows, err := db.Read().QueryContext(t.Context(), "SELECT reference FROM orders WHERE reference LIKE $1", fmt.Sprintf("run %d item %%", run))
	require.NoError(t, err)
	found := map[string]bool{}
	for rows.Next() {
		var reference string
		require.NoError(t, rows.Scan(&reference))
		require.False(t, found[reference], "stored twice")
		found[reference] = true
	}
	require.NoError(t, rows.Err())
	require.NoError(t, rows.Close())
	return found
}
