package bench_test

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/pillarbox/pillarbox/services/suite/bench"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestHeadline(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	h := bench.Headline{Mails: 12, Size: 20_000, Dir: t.TempDir(), JSON: true, Out: &out}
	require.NoError(t, h.Validate())
	require.NoError(t, h.Run())
	var r bench.Result
	require.NoError(t, json.Unmarshal(out.Bytes(), &r))
	require.Equal(t, 12, r.Mails)
	require.Positive(t, r.One)
	require.InDelta(t, r.Ten/r.FilesOnly, r.TenToFiles, 1e-9)
	h.JSON = false
	out.Reset()
	require.NoError(t, h.Run())
	require.Contains(t, out.String(), "the article")
	require.Contains(t, out.String(), "47.3 s")
}

func TestDrain(t *testing.T) {
	t.Parallel()
	for _, service := range []string{"mailer", "audit", "loyalty"} {
		t.Run(service, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			d := bench.Drain{Service: service, Messages: 300, Dir: t.TempDir(), Out: &out}
			require.NoError(t, d.Validate())
			require.NoError(t, d.Run())
			require.Contains(t, out.String(), service+": 300 messages in ")
		})
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	require.Error(t, (&bench.Headline{Mails: 0, Size: 1}).Validate())
	require.Error(t, (&bench.Headline{Mails: 1, Size: 700_001}).Validate())
	require.Error(t, (&bench.Drain{Messages: 1_000_001}).Validate())
}
