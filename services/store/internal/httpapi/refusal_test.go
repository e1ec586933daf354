package httpapi_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/store/internal/httpapi"
	"github.com/pillarbox/pillarbox/services/store/internal/intake"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
)

// with is tea with one piece replaced.
func with(t *testing.T, old, new string) string {
	t.Helper()
	require.Equal(t, 1, strings.Count(tea, old), old)
	return strings.Replace(tea, old, new, 1)
}

func TestWrongBodies(t *testing.T) {
	t.Parallel()
	db, _ := databasetest.SQLite(t, "store")
	s := open(t, db)
	items := func(n int) string {
		one := `{"sku":"A","quantity":1,"unit_price":"1"}`
		return strings.TrimSuffix(strings.Repeat(one+",", n), ",")
	}
	order := func(items string) string {
		return `{"customer":{"email":"a@b.example"},"currency":"EUR","items":[` + items + `]}`
	}
	type wrong struct {
		name, body string
		status     int
		pointers   string // separated by blanks; *N only counts them
	}
	for _, c := range []wrong{
		{"nothing", "", 400, ""},
		{"blank", "  ", 400, ""},
		{"half", tea[:len(tea)-1], 400, ""},
		{"comma at the end", with(t, `"EUR",`, `"EUR",,`), 400, ""},
		{"trailing data", tea + "{}", 400, ""},
		{"trailing bracket", tea + "]", 400, ""},
		{"byte order mark", "\ufeff" + tea, 400, ""},
		{"bad UTF-8", with(t, "Ada Lovelace", "Ada \xff"), 400, ""},
		{"UTF-8 surrogate", with(t, "Ada Lovelace", "Ada \xed\xa0\x80"), 400, ""},
		{"lone surrogate", with(t, "Ada Lovelace", `Ada \ud800`), 400, ""},
		{"swapped surrogates", with(t, "Ada Lovelace", `Ada \ude00\ud83d`), 400, ""},
		{"raw line feed", with(t, "Ada Lovelace", "Ada\nLovelace"), 400, ""},
		{"far more than 500 items", with(t, `"items":[`, `"items":[`+strings.Repeat(`{"sku":"A","quantity":1,"unit_price":"1"},`, 8000)), 422, ""},
		{"nested too deeply", with(t, `"web-1001"`, strings.Repeat("[", 5000)+strings.Repeat("]", 5000)), 400, ""},
		{"no object", `[]`, 400, "-"},
		{"null", `null`, 400, "-"},
		{"string", `"x"`, 400, "-"},

		{"unknown field", with(t, `"reference"`, `"ref/e~rence"`), 400, "/ref~1e~0rence"},
		{"wrong case", with(t, `"currency"`, `"Currency"`), 400, "/Currency /currency"},
		{"duplicate", with(t, `"reference"`, `"currency":"USD","reference"`), 400, "/currency"},
		{"duplicate by escape", with(t, `"reference"`, `"\u0063urrency":"USD","reference"`), 400, "/currency"},
		{"duplicate inside", with(t, `"sku":"TEA-01"`, `"sku":"TEA-01","sku":"TEA-01"`), 400, "/items/0/sku"},
		{"read-only field", with(t, `"reference"`, `"id":"x","reference"`), 400, "/id"},
		{"price as a number", with(t, `"4.50"`, `4.50`), 400, "/items/0/unit_price"},
		{"quantity as text", with(t, `:2,`, `:"2",`), 400, "/items/0/quantity"},
		{"quantity with a fraction", with(t, `:2,`, `:2.0,`), 400, "/items/0/quantity"},
		{"quantity with an exponent", with(t, `:2,`, `:1e3,`), 400, "/items/0/quantity"},
		{"null name", with(t, `"Ada Lovelace"`, `null`), 400, "/customer/name"},
		{"customer as a list", with(t, `{"email":"ada@example.com","name":"Ada Lovelace","locale":"en"}`, `[]`), 400, "/customer"},
		{"item as text", order(`"tea"`), 400, "/items/0"},
		{"items as an object", with(t, `"reference":"web-1001"`, `"extra":1`), 400, "/extra"},
		{"all at once", `{"customer":{"email":1,"nam":"x"},"currency":"XXL","items":[{"sku":"","quantity":"1","unit_price":true},` +
			`{"sku":"B","quantity":0,"unit_price":"-1"}],"reference":[]}`, 400,
			"/customer/email /customer/nam /items/0/quantity /items/0/unit_price /reference /currency /items/0/sku /items/1/quantity /items/1/unit_price"},

		{"empty object", `{}`, 422, "/customer/email /currency /items"},
		{"no items", order(``), 422, "/items"},
		{"501 items", order(items(501)), 422, "/items"},
		{"15000 items, all of the wrong type", order(strings.TrimSuffix(strings.Repeat("1,", 15_000), ",")), 400, "*501"},
		{"500000 values", order(strings.TrimSuffix(strings.Repeat("1,", 500_000), ",")), 422, ""},
		{"quantity 0", with(t, `:2,`, `:0,`), 422, "/items/0/quantity"},
		{"quantity -0", with(t, `:2,`, `:-0,`), 422, "/items/0/quantity"},
		{"quantity negative", with(t, `:2,`, `:-1,`), 422, "/items/0/quantity"},
		{"quantity over a million", with(t, `:2,`, `:1000001,`), 422, "/items/0/quantity"},
		{"quantity beyond 64 bits", with(t, `:2,`, `:99999999999999999999,`), 422, "/items/0/quantity"},
		{"quantity far below", with(t, `:2,`, `:-99999999999999999999,`), 422, "/items/0/quantity"},
		{"negative price", with(t, `4.50`, `-4.50`), 422, "/items/0/unit_price"},
		{"too many decimals", with(t, `4.50`, `4.500`), 422, "/items/0/unit_price"},
		{"decimals in yen", with(t, `EUR`, `JPY`), 422, "/items/0/unit_price"},
		{"exponent in a price", with(t, `4.50`, `1e2`), 422, "/items/0/unit_price"},
		{"price not a number", with(t, `4.50`, `NaN`), 422, "/items/0/unit_price"},
		{"comma in a price", with(t, `4.50`, `4,50`), 422, "/items/0/unit_price"},
		{"price with blank", with(t, `4.50`, `4.50 `), 422, "/items/0/unit_price"},
		{"Arabic digits", with(t, `4.50`, `٤.٥٠`), 422, "/items/0/unit_price"},
		{"price beyond 64 bits", with(t, `4.50`, `92233720368547758.08`), 422, "/items/0/unit_price"},
		{"total overflow", with(t, `4.50`, `46116860184273879.04`), 422, "/items"},
		{"no price", with(t, `,"unit_price":"4.50"`, ``), 422, "/items/0/unit_price"},
		{"unknown currency", with(t, `EUR`, `EUX`), 422, "/currency"},
		{"currency in lower case", with(t, `EUR`, `eur`), 422, "/currency"},
		{"blank sku", with(t, `TEA-01`, ` `), 422, "/items/0/sku"},
		{"long sku", with(t, `TEA-01`, strings.Repeat("ä", 65)), 422, "/items/0/sku"},
		{"long item name", with(t, `Green tea`, strings.Repeat("ä", 201)), 422, "/items/0/name"},
		{"long name", with(t, `Ada Lovelace`, strings.Repeat("x", 201)), 422, "/customer/name"},
		{"long reference", with(t, `web-1001`, strings.Repeat("x", 201)), 422, "/reference"},
		{"NUL", with(t, `Ada Lovelace`, `Ada\u0000`), 422, "/customer/name"},
		{"line feed", with(t, `Green tea`, `Green\ntea`), 422, "/items/0/name"},
		{"C1", with(t, `TEA-01`, `TEA\u0085`), 422, "/items/0/sku"},
		{"DEL", with(t, `web-1001`, "web\u007f"), 422, "/reference"},
		{"line separator", with(t, `web-1001`, `web\u2028`), 422, "/reference"},
		{"right-to-left override", with(t, `web-1001`, `web\u202e`), 422, "/reference"},
		{"bad address", with(t, `ada@example.com`, `ada`), 422, "/customer/email"},
		{"address with a line feed", with(t, `ada@example.com`, `ada@example.com\nBcc: x@example.com`), 422, "/customer/email"},
		{"bad locale", with(t, `"en"`, `"e n"`), 422, "/customer/locale"},
		{"much at once", `{"customer":{"email":"x"},"currency":"EUR","items":[{"sku":"","quantity":0,"unit_price":"x"}]}`, 422,
			"/customer/email /items/0/sku /items/0/quantity /items/0/unit_price"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := s.do("POST", "/orders", c.body, "Content-Type", "application/json").is(c.status)
			got := a.pointers()
			if n, found := strings.CutPrefix(c.pointers, "*"); found {
				require.Equal(t, n, strconv.Itoa(len(got)-1)) // the items and their number
				return
			}
			want := strings.Fields(c.pointers)
			if c.pointers == "-" { // the whole document
				want = []string{""}
			}
			require.Equal(t, want, got)
		})
	}
	require.Zero(t, count(t, db, "orders"))
	s.do("POST", "/orders", tea).is(201)
}

func TestWrongChanges(t *testing.T) {
	t.Parallel()
	db, _ := databasetest.SQLite(t, "store")
	s := open(t, db)
	path := "/orders/" + s.do("POST", "/orders", with(t, "EUR", "BHD")).is(201).order().ID
	for body, pointers := range map[string][]string{
		`{"currency":"EUR"}`:                 {"/currency"},
		`{"customer":{"email":"a@b.c"}}`:     {"/customer/email"},
		`{"customer":{"name":1},"items":{}}`: {"/customer/name", "/items"},
		`{"status":"cancelled","items":[]}`:  {"/status", "/items"},
	} {
		require.Equal(t, pointers, s.do("PATCH", path, body, "If-Match", "*").is(400).pointers())
	}
	for body, pointers := range map[string][]string{
		`{"items":[]}`: {"/items"},
		`{"items":[{"sku":"A","quantity":1,"unit_price":"1.2345"}],"customer":{"name":"\u0007"}}`: {"/customer/name", "/items/0/unit_price"},
	} {
		require.Equal(t, pointers, s.do("PATCH", path, body, "If-Match", "*").is(422).pointers())
	}
	s.do("PATCH", path, `{`, "If-Match", "*").is(400)
	s.do("PATCH", path, `{}`, "If-Match", "*", "Content-Type", "-").is(415)
	s.do("POST", path+"/cancel", `{"why":1}`).is(400)
	s.do("POST", path+"/cancel", `x`).is(400)
	s.do("POST", path+"/cancel", `x`, "Content-Type", "text/plain").is(415)
	s.do("POST", "/orders/"+s.do("POST", "/orders", tea).is(201).order().ID+"/cancel", "",
		"Content-Type", "application/x-www-form-urlencoded").is(200) // curl -d ''
	require.Equal(t, "1.234", s.do("PATCH", path, `{"items":[{"sku":"A","quantity":1,"unit_price":"1.234"}]}`,
		"If-Match", "*").is(200).order().Total)
}

func TestContentTypes(t *testing.T) {
	t.Parallel()
	db, _ := databasetest.SQLite(t, "store")
	s := open(t, db)
	for _, bad := range []string{"-", "text/json", "application/problem+json", "application/json; charset=latin1", "application/json;;", "*/*"} {
		s.do("POST", "/orders", tea, "Content-Type", bad).is(415)
	}
	s.do("POST", "/orders", tea, "Content-Encoding", "gzip").is(415)
	s.do("POST", "/orders", tea, "Content-Type", `Application/JSON; charset="UTF-8"`).is(201)
}

func TestIdempotencyKeySyntax(t *testing.T) {
	t.Parallel()
	db, _ := databasetest.SQLite(t, "store")
	s := open(t, db)
	for _, bad := range []string{"", "ä", "a\tb", strings.Repeat("k", 256)} {
		s.do("POST", "/orders", tea, "Idempotency-Key", bad).is(400)
	}
	r := httptest.NewRequest("POST", "/orders", strings.NewReader(tea))
	r.Header.Set("Content-Type", "application/json")
	r.Header["Idempotency-Key"] = []string{"a", "b"}
	s.send(r, tea).is(400)
	s.do("POST", "/orders", tea, "Idempotency-Key", strings.Repeat("~", 255)).is(201)
}

func TestTooLarge(t *testing.T) {
	t.Parallel()
	db, _ := databasetest.SQLite(t, "store")
	s := open(t, db, func(c *intake.Config, _ *httpapi.Config) { c.MaxEvent = 800 })
	fill := func(n int) string { return tea + strings.Repeat(" ", n-len(tea)) }
	s.do("POST", "/orders", fill(1<<20)).is(201)
	s.do("POST", "/orders", fill(1<<20+1)).is(413)
	r := httptest.NewRequest("POST", "/orders", io.MultiReader(strings.NewReader(fill(2<<20))))
	r.Header.Set("Content-Type", "application/json") // chunked: the length is not known before
	require.EqualValues(t, -1, r.ContentLength)
	s.send(r, tea).is(413)

	large := with(t, "Green tea", strings.Repeat("x", 200))
	large = strings.Replace(large, "Ada Lovelace", strings.Repeat("y", 200), 1)
	before := count(t, db, "orders")
	s.do("POST", "/orders", large, "Idempotency-Key", "k").is(413)
	require.Equal(t, before, count(t, db, "orders"))
	require.Zero(t, count(t, db, "idempotency"), "a refused request does not use its key up")
	s.do("POST", "/orders", tea, "Idempotency-Key", "k").is(201)
	path := "/orders/" + s.do("POST", "/orders", tea).is(201).order().ID
	s.do("PATCH", path, `{"customer":{"name":"`+strings.Repeat("y", 200)+`"},"items":[{"sku":"A","name":"`+strings.Repeat("y", 200)+
		`","quantity":1,"unit_price":"1"}]}`, "If-Match", "*").is(413)
	require.EqualValues(t, 1, s.do("GET", path, "").is(200).order().Version)
}

// brokenBody fails as a client's connection would.
type brokenBody struct{ err error }

func (b brokenBody) Read([]byte) (int, error) { return 0, b.err }

func TestBodyThatEndsEarly(t *testing.T) {
	t.Parallel()
	db, _ := databasetest.SQLite(t, "store")
	s := open(t, db)
	for err, status := range map[error]int{io.ErrUnexpectedEOF: 400, fmt.Errorf("read: %w", context.DeadlineExceeded): 400} {
		r := httptest.NewRequest("POST", "/orders", brokenBody{err})
		r.Header.Set("Content-Type", "application/json")
		s.send(r, tea).is(status)
	}
}

func TestBodyBudget(t *testing.T) {
	t.Parallel()
	db, _ := databasetest.SQLite(t, "store")
	s := open(t, db, func(_ *intake.Config, c *httpapi.Config) { c.BodyBudget = 10_000 })
	blocked, release := io.Pipe()
	r := httptest.NewRequest("POST", "/orders", blocked)
	r.Header.Set("Content-Type", "application/json")
	done := make(chan answer)
	go func() { done <- s.send(r, tea) }()
	_, err := release.Write([]byte(tea)) // returns when the handler has read it and holds 4 KiB
	require.NoError(t, err)
	s.do("POST", "/orders", tea).is(201)
	full := s.do("POST", "/orders", tea+strings.Repeat(" ", 5000)).is(http.StatusServiceUnavailable)
	require.Equal(t, "1", full.header.Get("Retry-After"))
	require.NoError(t, release.Close())
	(<-done).is(201)
	s.do("POST", "/orders", tea).is(201)
}

func TestDatabaseAway(t *testing.T) {
	t.Parallel()
	db, err := database.Open("postgres://nobody:secret@127.0.0.1:1/none?sslmode=disable", database.Options{Schema: "store"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	s := open(t, db)
	path := "/orders/" + uuid.Must(uuid.NewV7()).String()
	for _, a := range []answer{
		s.do("POST", "/orders", tea),
		s.do("POST", "/orders", tea, "Idempotency-Key", "k"),
		s.do("GET", "/orders", ""),
		s.do("GET", path, ""),
		s.do("GET", path+"/timeline", ""),
		s.do("PATCH", path, "{}", "If-Match", "*"),
		s.do("POST", path+"/cancel", ""),
	} {
		require.NotEmpty(t, a.is(503).header.Get("Retry-After"))
		require.NotContains(t, string(a.body), "secret")
	}
	s.do("POST", "/orders", "{}").is(422)
}
