package letter

import (
	"bytes"
	"io"
	"mime/quotedprintable"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func BenchmarkQuoted(b *testing.B) {
	const line = "<p style=\"margin: 0\">Grüne Tasse, 0.3 l, à 7.25 € = 29.00 €; delivered on Tuesday</p>\n"
	text := strings.Repeat(line, 524288/len(line))
	b.SetBytes(int64(len(text)))
	b.Run("ours", func(b *testing.B) {
		var out []byte
		for b.Loop() {
			out = appendQuoted(out[:0], text)
		}
	})
	b.Run("standard", func(b *testing.B) {
		var out bytes.Buffer
		for b.Loop() {
			out.Reset()
			w := quotedprintable.NewWriter(&out)
			_, err := w.Write([]byte(text))
			require.NoError(b, err)
			require.NoError(b, w.Close())
		}
	})
}

func checkQuoted(t require.TestingT, text string) {
	got := appendQuoted([]byte("before"), text)
	got, ok := bytes.CutPrefix(got, []byte("before"))
	require.True(t, ok)
	for line := range bytes.SplitSeq(got, []byte("\r\n")) {
		require.LessOrEqual(t, len(line), 76)
	}
	back, err := io.ReadAll(quotedprintable.NewReader(bytes.NewReader(got)))
	require.NoError(t, err)
	require.Equal(t, strings.NewReplacer("\r\n", "\r\n", "\r", "\r\n", "\n", "\r\n").Replace(text), string(back))
	// Of a lone "\r" the standard writer may take the next break for its own.
	text = strings.ReplaceAll(text, "\r", "")
	var want bytes.Buffer
	w := quotedprintable.NewWriter(&want)
	_, err = w.Write([]byte(text))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	require.Equal(t, want.String(), string(appendQuoted(nil, text)))
}

func TestQuotedPrintable(t *testing.T) {
	t.Parallel()
	piece := rapid.SampledFrom([]string{"a", "=", " ", "\t", "\n", "\r\n", "\r", "ü", "🍵", ".", "~", "\x7f", "\x00", strings.Repeat("x", 71), strings.Repeat(" ", 74)})
	rapid.Check(t, func(t *rapid.T) {
		checkQuoted(t, strings.Join(rapid.SliceOfN(piece, 0, 200).Draw(t, "pieces"), ""))
	})
}

func FuzzQuotedPrintable(f *testing.F) {
	f.Add("Grüße \r\n=\t")
	f.Fuzz(func(t *testing.T, text string) { checkQuoted(t, text) })
}
