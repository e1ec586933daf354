package strictjson_test

import (
	"bytes"
	"encoding/json"
	"math"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/store/internal/strictjson"
)

func TestParse(t *testing.T) {
	t.Parallel()
	const list, text = `[null,true,false,-0,1.5e+3,"x"]`, `{"a\n\u00e4\ud83d\ude00":[null,true,false,-0,1.5e+3,"x"],"":{}}`
	v, err := strictjson.Parse([]byte(" " + text + " "))
	require.NoError(t, err)
	require.Equal(t, strictjson.Value{Kind: strictjson.Object, Text: text, Members: []strictjson.Member{
		{Name: "a\nä😀", Value: strictjson.Value{Kind: strictjson.Array, Text: list, Elements: []strictjson.Value{
			{Kind: strictjson.Null, Text: "null"}, {Kind: strictjson.Bool, Text: "true"}, {Kind: strictjson.Bool, Text: "false"},
			{Kind: strictjson.Number, Text: "-0"}, {Kind: strictjson.Number, Text: "1.5e+3"}, {Kind: strictjson.String, Text: "x"},
		}}},
		{Name: "", Value: strictjson.Value{Kind: strictjson.Object, Text: "{}"}},
	}}, v)
}

func TestSyntaxErrors(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                      "no JSON value at byte 0",
		"  ":                    "no JSON value at byte 2",
		"\ufeff{}":              "byte order mark at byte 0",
		"{}{":                   "data after the JSON value at byte 2",
		"{} \x00":               "data after the JSON value at byte 3",
		"\"\xc3\"":              "bytes that are not UTF-8 at byte 1",
		`{"a":1,}`:              "no member name at byte 7",
		`{a:1}`:                 "no member name at byte 1",
		`{"a" 1}`:               "no colon after a member name at byte 5",
		`{"a":1 "b":2}`:         "no comma or closing brace after a member at byte 7",
		`[1 2]`:                 "no comma or closing bracket after an element at byte 3",
		`[1,]`:                  "no JSON value at byte 3",
		`[`:                     "no JSON value at byte 1",
		`nul`:                   "no JSON value at byte 0",
		`NaN`:                   "no JSON value at byte 0",
		`01`:                    "data after the JSON value at byte 1",
		`-`:                     "no digit in a number at byte 1",
		`1.`:                    "no digit after a decimal point at byte 2",
		`1e+`:                   "no digit in an exponent at byte 3",
		`"a`:                    "string without end at byte 2",
		`"\n`:                   "string without end at byte 3",
		"\"a\tb\"":              "control character in a string at byte 2",
		"\"\\n\t\"":             "control character in a string at byte 3",
		`"\x"`:                  "unknown escape in a string at byte 1",
		`"\u12g4"`:              "unknown escape in a string at byte 1",
		`"\u+123"`:              "unknown escape in a string at byte 1",
		`"\`:                    "unknown escape in a string at byte 1",
		`"\ud800"`:              "half a surrogate pair in a string at byte 1",
		`"\ud800\u0041"`:        "half a surrogate pair in a string at byte 1",
		`"\udc00\ud800"`:        "half a surrogate pair in a string at byte 1",
		strings.Repeat("[", 99): "values nested too deeply at byte 17",

		"[" + strings.Repeat("1,", 20_000) + "1]": "too many values at byte 39999",
	} {
		_, err := strictjson.Parse([]byte(text))
		require.EqualError(t, err, want, "%q", text)
	}
}

func TestIntegers(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{
		"0": 0, "-0": 0, "-7": -7, "9223372036854775807": math.MaxInt64, "9223372036854775808": math.MaxInt64,
		"-9223372036854775808": math.MinInt64, "-9223372036854775809": math.MinInt64,
	} {
		v, err := strictjson.Parse([]byte(text))
		require.NoError(t, err)
		var d strictjson.Decoder
		var n int64
		d.Integer(&n)(v, "/n")
		require.Empty(t, d.Errors)
		require.Equal(t, want, n, text)
	}
	for _, text := range []string{"1.0", "1e2", "1E2", `"1"`, "null", "true"} {
		v, err := strictjson.Parse([]byte(text))
		require.NoError(t, err)
		var d strictjson.Decoder
		n := int64(5)
		d.Integer(&n)(v, "/n")
		require.Len(t, d.Errors, 1)
		require.EqualValues(t, 5, n)
	}
}

func TestObjectNamesEveryWrongMember(t *testing.T) {
	t.Parallel()
	v, err := strictjson.Parse([]byte(`{"Name":"x","tags":["a",1,null],"tags":[],"a/b~c":0,"name":{}}`))
	require.NoError(t, err)
	var d strictjson.Decoder
	var name string
	var tags [3]string
	i := 0
	d.Object(v, "", strictjson.Fields{
		{Name: "name", Read: d.String(&name)},
		{Name: "tags", Read: func(v strictjson.Value, at string) {
			d.Array(v, at, 2, func(v strictjson.Value, at string) {
				d.String(&tags[i])(v, at)
				i++
			})
		}},
	})
	require.Equal(t, []strictjson.FieldError{
		{Pointer: "/Name", Detail: "is not a known field; names are case-sensitive: name"},
		{Pointer: "/tags/1", Detail: "must be a string, not a number"}, // the third is beyond the limit
		{Pointer: "/tags", Detail: "comes more than once"},
		{Pointer: "/a~1b~0c", Detail: "is not a known field; known here: name, tags"},
		{Pointer: "/name", Detail: "must be a string, not an object"},
	}, d.Errors)
	require.Equal(t, [3]string{"a"}, tags)
}

func TestObjectWithoutFields(t *testing.T) {
	t.Parallel()
	v, err := strictjson.Parse([]byte(`{"x":1}`))
	require.NoError(t, err)
	var d strictjson.Decoder
	d.Object(v, "", strictjson.Fields{})
	require.Equal(t, []strictjson.FieldError{{Pointer: "/x", Detail: "is not a known field; there are none here"}}, d.Errors)
}

// FuzzParse compares with encoding/json: what it takes is taken, except for what is strict on
// purpose; what is taken means the same.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		`{"a":[1,2.5e-3,"\u00e4\ud83d\ude00",null,true,false,{}]}`, `"\ud800"`, "\ufeff1", `[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]`, `{"a":1,"a":2}`, "\"\xff\"", "1 2",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		v, err := strictjson.Parse(text)
		if err == nil {
			require.True(t, json.Valid(text))
			require.True(t, utf8.Valid(text))
			decoder := json.NewDecoder(bytes.NewReader(text))
			decoder.UseNumber()
			var want any
			require.NoError(t, decoder.Decode(&want))
			require.Equal(t, want, plain(v))
			return
		}
		if json.Valid(text) && utf8.Valid(text) {
			require.Regexp(t, "surrogate|nested|too many", err.Error())
		}
	})
}

// plain is what encoding/json would have made of it.
func plain(v strictjson.Value) any {
	switch v.Kind {
	case strictjson.Null:
		return nil
	case strictjson.Bool:
		return v.Text == "true"
	case strictjson.Number:
		return json.Number(v.Text)
	case strictjson.String:
		return v.Text
	case strictjson.Array:
		list := make([]any, len(v.Elements))
		for i, e := range v.Elements {
			list[i] = plain(e)
		}
		return list
	}
	object := map[string]any{}
	for _, m := range v.Members {
		object[m.Name] = plain(m.Value) // the last of duplicates
	}
	return object
}
