package events_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pillarbox/pillarbox/shared/events"
)

// sameDecoded: long strings are read by hand, and that shows in nothing.
func sameDecoded(t require.TestingT, raw []byte) {
	want, wantErr := events.DecodeWhole(bytes.Clone(raw))
	got, err := events.Decode(raw)
	require.Equal(t, wantErr, err)
	require.Equal(t, want, got, "with what was made of the body")
}

func longMail(fields string) []byte {
	return fmt.Appendf(nil, ` {"specversion":"1.0", "id":%[1]q,"source":"/x","type":"mail.requested.v1","time":"2026-11-30T11:00:00Z","subject":%[1]q,
		"orderversion":1, "data": {"sender":{"email":"a@example.com"}, "recipients":[{"email":"b@example.com"}], %[2]s } ,"more": ["\\\""]}`+"\n", mailID, fields)
}

func TestLongBodiesAreDecodedLikeAllElse(t *testing.T) {
	t.Parallel()
	x := strings.Repeat("Größe \U0001F375\u2028\u007e\u00a0", 500)
	for name, fields := range map[string]string{
		"one":               `"subject":"s", "html":"` + x + `"`,
		"two":               `"text":"` + x + `a","subject":"s","html":"` + x + `b"`,
		"escapes":           `"subject":"s","text":"` + x + `\"\\\/\n\r\t\u00e4\u2028\ud83c\udf75\ud83c\ud83cx\udf75\uD83C\uDF75 \\"`,
		"every escape":      `"subject":"s","text":"` + strings.Repeat(`\\\"`, 2000) + `"`,
		"twice":             `"subject":"s","html":"` + x + `1","html":"` + x + `2"`,
		"then short":        `"subject":"s","html":"` + x + `1","html":"2"`,
		"then null":         `"subject":"s","html":"` + x + `1","html":null`,
		"another case":      `"subject":"s","HTML":"` + x + `1"`,
		"two cases":         `"subject":"s","html":"` + x + `1","HTML":"` + x + `2"`,
		"unknown":           `"subject":"s","html":"h","other":"` + x + `"`,
		"unknown and known": `"subject":"s","html":"` + x + `","other":{"html":"` + x + `"}`,
		"a name":            `"subject":"s","text":"` + x + `","` + x + `":1`,
		"a subject":         `"html":"h","subject":"` + x + `"`,
		"no subject":        `"html":"` + x + `"`,
		"too much":          `"subject":"s","html":"` + strings.Repeat("x", events.MaxMailBody+1) + `"`,
		"a control":         `"subject":"s","html":"` + x + "\x01" + `"`,
		"a line feed":       `"subject":"s","html":"` + x + "\n" + `"`,
		"DEL":               `"subject":"s","html":"` + x + "\x7f" + `"`,
		"C1":                `"subject":"s","html":"` + x + "\u0085" + `"`,
		"escaped C1":        `"subject":"s","html":"` + x + `\u0085"`,
		"escaped NUL":       `"subject":"s","html":"` + x + `\u0000"`,
		"backspace":         `"subject":"s","html":"` + x + `\b"`,
		"control beside":    `"subject":"s","text":"\u0001","html":"` + x + `"`,
		"bad escape":        `"subject":"s","html":"` + x + `\x"`,
		"bad unit":          `"subject":"s","html":"` + x + `\u12g4"`,
		"signed unit":       `"subject":"s","html":"` + x + `\u+123"`,
		"short unit":        `"subject":"s","html":"` + x + `\u12"`,
		"no end":            `"subject":"s","html":"` + x,
		"bad UTF-8":         `"subject":"s","html":"` + x + "\xff" + `"`,
		"bad UTF-8 beside":  `"subject":"s` + "\xff" + `","html":"` + x + `"`,
		"no comma":          `"subject":"s" "html":"` + x + `"`,
		"not a string":      `"subject":"s","html":["` + x + `"]`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			raw := longMail(fields)
			sameDecoded(t, raw)
			sameDecoded(t, bytes.Replace(raw, []byte("mail.requested.v1"), []byte("order.placed.v1"), 1))
			sameDecoded(t, bytes.Replace(raw, []byte(`"more"`), []byte(`"data":{},"more"`), 1))
			sameDecoded(t, raw[:len(raw)-20])
			sameDecoded(t, raw[len(raw)/2:])
		})
	}
	_, err := events.Decode(longMail(`"subject":"s","html":"` + x + `"`))
	require.NoError(t, err, "most of the others are not")
}

func TestAnyBodyIsDecodedLikeAllElse(t *testing.T) {
	t.Parallel()
	piece := rapid.SampledFrom([]string{
		"x", `"`, `\`, `\"`, `\\`, `\n`, `\u0041`, `\ud83c`, `\udf75`, `\u0`, "ü", "🍵", "\xc3", "\u0085", "\t", "\x00", `","html":"`, `{`, `}`, `\/`,
		strings.Repeat("y", 5000),
	})
	body := rapid.Custom(func(t *rapid.T) string {
		return strings.Join(rapid.SliceOfN(piece, 0, 6).Draw(t, "pieces"), "")
	})
	rapid.Check(t, func(t *rapid.T) {
		sameDecoded(t, longMail(`"subject":"s","text":"`+body.Draw(t, "text")+`","html":"`+body.Draw(t, "html")+`"`))
	})
	text := rapid.String()
	rapid.Check(t, func(t *rapid.T) {
		quoted, err := json.Marshal(strings.Repeat(text.Draw(t, "text")+"x", 5000))
		require.NoError(t, err)
		sameDecoded(t, longMail(`"subject":"s","text":`+string(quoted)))
	})
}

func FuzzUnquote(f *testing.F) {
	f.Add("ü\\ud83c\\udf75\\n\\u0041")
	f.Fuzz(func(t *testing.T, s string) {
		if strings.Contains(strings.NewReplacer(`\\`, "", `\"`, "").Replace(s), `"`) {
			return // ends before its end
		}
		var want string
		good := json.Unmarshal([]byte(`"`+s+`"`), &want) == nil && utf8.ValidString(s) &&
			!strings.ContainsFunc(want, func(r rune) bool { return unicode.IsControl(r) && !strings.ContainsRune("\t\r\n", r) })
		got, ok := events.Unquote([]byte(s))
		require.Equal(t, good, ok)
		if good {
			require.Equal(t, want, got)
		}
	})
}

func BenchmarkDecodeLargeMail(b *testing.B) {
	m := request()
	m.HTML = strings.Repeat("<p style=\"margin: 0\">Grüne Tasse, 0.3 l, à 7.25 € = 29.00 €; delivered on Tuesday</p>\n", 6000)
	e, err := events.NewMailRequested(mailID, "/shop/news", time.Now(), m)
	require.NoError(b, err)
	raw, err := e.Encode()
	require.NoError(b, err)
	b.SetBytes(int64(len(raw)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := events.Decode(raw); err != nil {
			b.Fatal(err)
		}
	}
}
