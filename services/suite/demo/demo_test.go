package demo_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alecthomas/kong"
	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/suite/demo"
)

// play runs a strategy in the time of synctest, in which every unit is exact.
func play(t *testing.T, strategy string) (all []demo.Handling) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		c := demo.Command{Strategy: strategy, Unit: 100 * time.Millisecond, JSON: true, Out: &out}
		require.NoError(t, c.Validate())
		require.NoError(t, c.Run())
		for line := range strings.Lines(out.String()) {
			var h demo.Handling
			decoder := json.NewDecoder(strings.NewReader(line))
			decoder.DisallowUnknownFields()
			require.NoError(t, decoder.Decode(&h))
			require.InDelta(t, h.Worker, h.End-h.Start, 0.001, "worker n takes n units")
			all = append(all, h)
		}
	})
	return all
}

func counts(all []demo.Handling) (byWorker [4]int, byMessage [10]int, end float64) {
	for _, h := range all {
		byWorker[h.Worker]++
		byMessage[h.Message]++
		end = max(end, h.End)
	}
	return byWorker, byMessage, end
}

func TestOneWorkerForEachMessage(t *testing.T) {
	t.Parallel()
	for strategy, want := range map[string]struct {
		end float64
		law func(t *testing.T, all []demo.Handling, byWorker [4]int)
	}{
		"single": {9, func(t *testing.T, all []demo.Handling, _ [4]int) {
			for i, h := range all {
				require.Equal(t, demo.Handling{Message: i + 1, Worker: 1, Start: float64(i), End: float64(i + 1)}, h)
			}
		}},
		"competing": {6, func(t *testing.T, all []demo.Handling, byWorker [4]int) {
			require.Greater(t, byWorker[1], byWorker[2], "the fast worker handles most")
			require.GreaterOrEqual(t, byWorker[2], byWorker[3])
		}},
		"round-robin": {9, func(t *testing.T, all []demo.Handling, byWorker [4]int) {
			require.Equal(t, [4]int{0, 3, 3, 3}, byWorker)
			for _, h := range all {
				require.Equal(t, (h.Message-1)%3+1, h.Worker, "a fixed turn")
			}
		}},
		"by-key": {9, func(t *testing.T, all []demo.Handling, _ [4]int) {
			owner, last := map[string]int{}, map[string]int{}
			for _, h := range all {
				require.NotEmpty(t, h.Key)
				if owner[h.Key] == 0 {
					owner[h.Key] = h.Worker
				}
				require.Equal(t, owner[h.Key], h.Worker, "a key stays with its worker")
				require.Greater(t, h.Message, last[h.Key], "in order")
				last[h.Key] = h.Message
			}
			require.Len(t, owner, 3)
		}},
	} {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			all := play(t, strategy)
			byWorker, byMessage, end := counts(all)
			require.Equal(t, [10]int{0, 1, 1, 1, 1, 1, 1, 1, 1, 1}, byMessage)
			require.LessOrEqual(t, end, want.end)
			want.law(t, all, byWorker)
		})
	}
}

func TestEveryWorkerForEachMessage(t *testing.T) {
	t.Parallel()
	all := play(t, "sequential")
	require.Len(t, all, 27)
	at := 0.0
	for i, h := range all {
		require.Equal(t, [2]int{i/3 + 1, i%3 + 1}, [2]int{h.Message, h.Worker})
		require.InDelta(t, at, h.Start, 0.001, "strictly one after another")
		at = h.End
	}
	all = play(t, "parallel")
	require.Len(t, all, 27)
	for three := range slices.Chunk(all, 3) {
		for i, h := range three {
			require.Equal(t, i+1, h.Worker)
			require.InDelta(t, three[0].Start, h.Start, 0.001, "all three at once")
			require.Equal(t, three[0].Message, h.Message)
		}
	}
}

func TestTable(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		require.NoError(t, (&demo.Command{Strategy: "round-robin", Unit: time.Second, Out: &out}).Run())
		require.Equal(t, `  message  worker  start  end
        1       1    0.0  1.0
        2       2    0.0  2.0
        3       3    0.0  3.0
        4       1    1.0  2.0
        7       1    2.0  3.0
        5       2    2.0  4.0
        6       3    3.0  6.0
        8       2    4.0  6.0
        9       3    6.0  9.0

workers 1, 2 and 3 handled 3, 3 and 3 in 9.0 time units; processed 9 messages in 9.00 s (1/s)
`, out.String())
		out.Reset()
		require.NoError(t, (&demo.Command{Strategy: "by-key", Unit: time.Second, Out: &out}).Run())
		require.Regexp(t, `^  message  worker  start  end   key\n`, out.String())
	})
}

func TestCommandLine(t *testing.T) {
	t.Parallel()
	for args, problem := range map[string]string{
		"demo parallel":              "",
		"demo competing --unit=1ms":  "",
		"demo lottery":               "must be one of",
		"demo":                       "expected \"<strategy>\"",
		"demo parallel --unit=0":     "--unit must be 1ms to 1m",
		"demo parallel --unit=100us": "--unit must be 1ms to 1m",
	} {
		var cli struct {
			Demo demo.Command `cmd:""`
		}
		parser, err := kong.New(&cli)
		require.NoError(t, err)
		_, err = parser.Parse(strings.Fields(args))
		if problem == "" {
			require.NoError(t, err, args)
		} else {
			require.ErrorContains(t, err, problem, args)
		}
	}
	_, err := demo.Play(t.Context(), "lottery", time.Second)
	require.ErrorContains(t, err, fmt.Sprintf("%q", "lottery"))
}
