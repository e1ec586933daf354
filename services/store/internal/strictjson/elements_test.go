package strictjson_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/store/internal/strictjson"
)

func TestElements(t *testing.T) {
	t.Parallel()
	const text = " [ {\"a\":[1,\"],[\\\"\"]} , \"}\" ,[[],{}],1\n] "
	elements, err := strictjson.Elements([]byte(text), 10)
	require.NoError(t, err)
	var parts []string
	for _, e := range elements {
		require.Equal(t, string(e.Text), text[e.Offset:e.Offset+len(e.Text)])
		parts = append(parts, strings.TrimSpace(string(e.Text)))
	}
	require.Equal(t, []string{`{"a":[1,"],[\""]}`, `"}"`, `[[],{}]`, `1`}, parts)

	for _, empty := range []string{"[]", " [ \t\r\n] "} {
		elements, err = strictjson.Elements([]byte(empty), 10)
		require.NoError(t, err)
		require.Empty(t, elements)
	}
	elements, err = strictjson.Elements([]byte("[1,2,3,4"), 3)
	require.NoError(t, err, "what follows is not read")
	require.Len(t, elements, 3)
}

func TestNoElements(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":               "no array at byte 0",
		" {}":            "no array at byte 1",
		"\ufeff[]":       "no array at byte 0",
		"[":              "array without end at byte 1",
		`["a]`:           "array without end at byte 4",
		`["\`:            "array without end at byte 3",
		"[{]":            "array without end at byte 3",
		"[1":             "array without end at byte 2",
		"[] []":          "data after the JSON value at byte 3",
		"[1]]":           "data after the JSON value at byte 3",
		"[1}, 2]":        "array without end at byte 7",
		"[" + "[1,2]":    "array without end at byte 6",
		"[]" + "\x00":    "data after the JSON value at byte 2",
		"[1,2] trailing": "data after the JSON value at byte 6",
	} {
		_, err := strictjson.Elements([]byte(text), 10)
		require.EqualError(t, err, want, "%q", text)
	}
}

// An element that is beyond the limits is told from one that is malformed.
func TestLimitsAreToldApart(t *testing.T) {
	t.Parallel()
	for text, limit := range map[string]bool{
		strings.Repeat("[", 30) + strings.Repeat("]", 30): true,
		"[" + strings.Repeat("1,", 30_000) + "1]":         true,
		"[1,]": false,
	} {
		_, err := strictjson.Parse([]byte(text))
		var syntax *strictjson.SyntaxError
		require.ErrorAs(t, err, &syntax)
		require.Equal(t, limit, syntax.Limit)
	}
}

// FuzzElements: cut and parsed, a text is an array exactly when it is one for Parse, with the same elements.
func FuzzElements(f *testing.F) {
	for _, seed := range []string{`[1,"a,]",{"b":[2]},[]]`, `[]`, `[1,]`, `[,]`, `[1}`, `["\"]`, `[{"a":1]]`, ` [ 1 ] `, `[1]x`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		whole, wholeErr := strictjson.Parse(text)
		elements, err := strictjson.Elements(text, 1<<20)
		var parts []strictjson.Value
		for _, e := range elements {
			v, partErr := strictjson.Parse(e.Text)
			if partErr != nil {
				err = partErr
				break
			}
			parts = append(parts, v)
		}
		switch {
		case err != nil && wholeErr == nil:
			require.NotEqual(t, strictjson.Array, whole.Kind, "%v", err)
		case err == nil && wholeErr == nil:
			require.Equal(t, strictjson.Array, whole.Kind)
			require.Equal(t, whole.Elements, parts)
		case err == nil:
			require.Regexp(t, "nested|too many", wholeErr.Error()) // an array may hold more than an element
			require.True(t, json.Valid(bytes.TrimSpace(text)))
		}
	})
}
