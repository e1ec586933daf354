package queue_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func stoppable(t testing.TB) (context.Context, context.CancelFunc) {
	return context.WithCancel(context.WithoutCancel(t.Context()))
}

func TestSendAndReceive(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, p *place) {
		require.Equal(t, "queue jobs made\n", p.ok("create", "jobs"))
		require.Equal(t, "queue jobs exists already\n", p.ok("create", "jobs"))
		file := filepath.Join(t.TempDir(), "message")
		require.NoError(t, os.WriteFile(file, []byte("two\nlines\n"), 0o600))
		p.send("jobs", "one")
		require.Equal(t, "sent to jobs as sequence 2\n", p.ok("send", "jobs", file))
		_, _, err := p.do(call{in: "three\n\nfive"}, "send", "jobs.sub", "-", "--lines")
		require.NoError(t, err)

		require.Equal(t, "one\n", p.ok("receive", "jobs"))
		require.Equal(t, "two\nlines\nthree\n", p.ok("receive", "jobs", "--count", "2", "--timeout", "5s"))
		c := p.consumer("jobs", "tool")
		require.EqualValues(t, 2, c["depth"])
		require.EqualValues(t, 0, c["in_flight"])
		require.EqualValues(t, 3, c["ack_floor"])
		require.NotNil(t, c["oldest_age_seconds"])

		out, notes, err := p.do(call{}, "receive", "jobs", "--count", "5", "--timeout", "300ms", "--raw")
		require.NoError(t, err)
		require.Equal(t, "five", out)
		require.Contains(t, notes, "2 messages came")
		out, _, err = p.do(call{}, "receive", "jobs", "--timeout", "100ms")
		require.ErrorContains(t, err, "no message came from jobs within 100ms")
		require.Equal(t, 3, status(err))
		require.Empty(t, out)
		require.Nil(t, p.consumer("jobs", "tool")["oldest_age_seconds"])
	})
}

// A message that is sent while a receiver waits reaches it, also when no suite runs: then the receiver serves the folder.
func TestReceiveWaits(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, p *place) {
		p.ok("create", "jobs", "-c", "w")
		got, ended := make(chan string, 1), make(chan error, 1)
		go func() {
			out, _, err := p.do(call{}, "receive", "jobs", "-c", "w", "--json")
			got <- out
			ended <- err
		}()
		require.Eventually(t, func() bool { return p.consumer("jobs", "w")["readers"].(float64) > 0 }, soon, waitTick)
		p.send("jobs", "late")
		record := records(t, <-got)[0]
		require.NoError(t, <-ended)
		require.Equal(t, "late", record["data"])
		require.Equal(t, "w", record["consumer"])
		require.EqualValues(t, 1, record["deliveries"])
	})
}

func TestFollow(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, p *place) {
		p.ok("create", "jobs", "-c", "w")
		reader, writer := io.Pipe()
		ctx, stop := stoppable(t)
		ended := make(chan error, 1)
		go func() {
			_, _, err := p.do(call{out: writer, stop: ctx.Done()}, "receive", "jobs", "-c", "w", "--follow")
			ended <- errors.Join(err, writer.CloseWithError(err))
		}()
		lines := make(chan string, 10)
		go func() {
			defer close(lines)
			for from := bufio.NewScanner(reader); from.Scan(); {
				lines <- from.Text()
			}
		}()
		for _, text := range []string{"one", "two", "three"} {
			// In a folder, the sender may be there first; then the follower reads from its broker and takes over.
			p.send("jobs", text)
			require.Equal(t, text, <-lines)
		}
		stop()
		require.NoError(t, <-ended)
		require.EqualValues(t, 0, p.consumer("jobs", "w")["in_flight"], "nothing was left to the ack deadline")
	})
}

// brokenPipe takes no more than the first write.
type brokenPipe struct{ writes int }

func (b *brokenPipe) Write(p []byte) (int, error) {
	if b.writes++; b.writes > 1 {
		return 0, errors.New("nobody reads")
	}
	return len(p), nil
}

func TestWhatCannotBePrintedGoesBack(t *testing.T) {
	t.Parallel()
	p := server(t)
	p.ok("create", "jobs")
	p.send("jobs", "one", "two")
	_, _, err := p.do(call{out: &brokenPipe{}}, "receive", "jobs", "--follow")
	require.ErrorContains(t, err, "nobody reads")
	record := records(t, p.ok("receive", "jobs", "--json", "--timeout", "1s"))[0] // well before the ack deadline
	require.Equal(t, "two", record["data"])
	require.EqualValues(t, 2, record["deliveries"])
}

func TestStopBeforeAMessageIsNoSuccess(t *testing.T) {
	t.Parallel()
	p := server(t)
	p.ok("create", "jobs")
	stopped, cancel := stoppable(t)
	cancel()
	_, _, err := p.do(call{stop: stopped.Done()}, "receive", "jobs")
	require.ErrorContains(t, err, "interrupted")
	_, _, err = p.do(call{stop: stopped.Done()}, "receive", "jobs", "--count", "2")
	require.Equal(t, 1, status(err))
}

func TestPeekChangesNothing(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, p *place) {
		p.ok("create", "jobs", "-c", "w")
		p.send("jobs", "a", "b", "c")
		p.send("jobs.x", "d")
		data := func(args ...string) (all string) {
			for _, r := range records(t, p.ok(append([]string{"peek", "--json"}, args...)...)) {
				all += r["data"].(string)
			}
			return all
		}
		require.Equal(t, "a\n", p.ok("receive", "jobs"))
		before := p.consumer("jobs", "tool")
		for range 2 {
			require.Equal(t, "bcd", data("jobs"), "what receive would take next comes first")
			require.Equal(t, "ab", data("jobs", "-c", "w", "-n", "2"))
			require.Equal(t, "cd", data("jobs", "--from", "3"))
			require.Equal(t, "d", data("jobs.x"))
			require.Equal(t, "cd", data("jobs", "--last", "-n", "2"))
			require.Equal(t, "abcd", data("jobs", "--last", "-n", "200"))
		}
		after := p.consumer("jobs", "tool")
		delete(before, "oldest_age_seconds")
		delete(after, "oldest_age_seconds")
		require.Equal(t, before, after)
		table := p.ok("peek", "jobs", "-n", "1")
		require.Equal(t, 2, strings.Count(table, "\n"))
		require.Contains(t, table, "SEQUENCE")
	})
}

func TestListAndInfo(t *testing.T) {
	t.Parallel()
	p := server(t)
	out, notes, err := p.do(call{}, "ls")
	require.NoError(t, err)
	require.Empty(t, out)
	require.Equal(t, "there is no queue\n", notes)
	require.Empty(t, p.ok("ls", "--json"))

	p.ok("create", "jobs.big", "-c", "big", "--max-bytes", "4096")
	p.ok("create", "empty")
	p.send("jobs.big", "x")
	p.send("jobs.small", "y")
	var rows []string
	for line := range strings.Lines(p.ok("ls")) {
		rows = append(rows, strings.Join(strings.Fields(line), " "))
	}
	require.Equal(t, "QUEUE CONSUMER DEPTH IN FLIGHT REDELIVERED OLDEST STATE", rows[0])
	require.Equal(t, "empty - 0 - - - no consumer", rows[1])
	require.Regexp(t, `^jobs big 1 0 0 \d+m?s nobody reads$`, rows[2])
	require.Len(t, rows, 3)

	info := p.ok("info", "jobs")
	require.Regexp(t, `messages +2\n`, info)
	require.Regexp(t, `max bytes +4096 \(\d+\.\d % used\)`, info)
	require.Contains(t, info, "jobs.big")
	record := records(t, p.ok("info", "jobs", "--json"))[0]
	require.EqualValues(t, 2, record["messages"])
	require.Equal(t, []any{"jobs.big"}, record["consumers"].([]any)[0].(map[string]any)["topics"])
}

func TestWhatIsWrongIsSaid(t *testing.T) {
	t.Parallel()
	p := server(t)
	p.ok("create", "jobs", "-c", "w")
	for _, c := range []struct{ reason, line string }{
		{"cannot be the name of a queue", "create $JS"},
		{"cannot be the name of a queue", "create pillarbox"},
		{"cannot be the name of a queue", "create _INBOX"},
		{"cannot be the name of a consumer", "create jobs -c a.b"},
		{"--max-bytes", "create other --max-bytes 1"},
		{"--replicas", "create other --replicas 2"},
		{"no queue", "info other"}, {"no queue", "ls other"}, {"no queue", "peek other"}, {"no queue", "send other"},
		{"no queue", "receive other"}, {"no queue", "purge other --yes"}, {"no queue", "pause other"}, {"no queue", "rm other --yes"},
		{"no consumer", "receive jobs -c other"}, {"no consumer", "peek jobs -c other"}, {"no consumer", "pause jobs -c other"},
		{"no consumer", "resume jobs -c other"}, {"no consumer", "rm jobs -c other --yes"},
		{"other topics", "receive jobs.x -c w"},
		{"--count", "peek jobs -n 0"}, {"--count", "peek jobs -n 10001"}, {"give one", "peek jobs --last --from 2"},
		{"--count", "receive jobs -n 0"}, {"--timeout", "receive jobs --timeout -1s"}, {"give one", "receive jobs --raw --json"},
		{"--for", "pause jobs --for -1s"},
		{"the broker's own", "send jobs -H nats-x=1"}, {"not sent", "send jobs -H a:b=1"},
		{"no such file", "send jobs /nowhere"},
		{"give one", "ls --data ."},
	} {
		p.refused(c.reason, strings.Fields(c.line)...)
	}
	require.Len(t, records(t, p.ok("ls", "--json")), 1)
}

func TestSend(t *testing.T) {
	t.Parallel()
	p := server(t)
	p.ok("create", "jobs", "--max-bytes", "2300000")
	sent := records(t, p.ok("send", "jobs", "--json", "--id", "a", "-H", "Kind=x,y;z", "-H", "Other=1"))[0]
	require.Equal(t, "a", sent["id"])
	require.Equal(t, false, sent["duplicate"])
	require.Contains(t, p.ok("send", "jobs", "--id", "a"), "had id a already, as sequence 1")
	r := records(t, p.ok("peek", "jobs", "--json"))[0]
	require.Equal(t, map[string]any{"Nats-Msg-Id": []any{"a"}, "Kind": []any{"x,y;z"}, "Other": []any{"1"}}, r["headers"])
	require.Equal(t, "", r["data"])

	_, _, err := p.do(call{in: "1\n2\n"}, "send", "jobs", "--lines", "--id", "b")
	require.NoError(t, err)
	require.Equal(t, "b-2", records(t, p.ok("peek", "jobs", "--json", "--last", "-n", "1"))[0]["id"])

	big := strings.Repeat("x", 1<<20)
	for _, args := range [][]string{{"send", "jobs"}, {"send", "jobs", "--lines"}} {
		_, _, err = p.do(call{in: big}, args...)
		require.ErrorContains(t, err, "a message may have")
		_, _, err = p.do(call{in: big[:1<<20-4<<10-1]}, args...)
		require.NoError(t, err)
	}
	_, _, err = p.do(call{in: big[:500_000]}, "send", "jobs")
	require.ErrorContains(t, err, "stream full")
}

// What others wrote into a message cannot steer the terminal of who looks at it, nor grow a table without end.
func TestHostileMessages(t *testing.T) {
	t.Parallel()
	p := server(t)
	p.ok("create", "jobs")
	hostile := []string{
		"\x1b[2J\x1b]0;title\a", "\u009b31m", "a\u202eb\u200b", "tab\tline\nreturn\r", "\xff\xfe", "nul\x00", "\u007f", "\U000e0041tag",
		strings.Repeat("w", 100_000),
	}
	p.send("jobs", hostile...)
	steers := "\x1b\a\u009b\u202e\u200b\r\x00\u007f\U000e0041"
	table := p.ok("peek", "jobs")
	require.False(t, strings.ContainsAny(table, steers), "%q", table)
	require.Equal(t, 1+len(hostile), strings.Count(table, "\n"))
	require.Less(t, len(table), 3000)
	require.Contains(t, table, `\xff\xfe`)
	require.Contains(t, table, `\u{202e}`)

	out := p.ok("peek", "jobs", "--json")
	require.False(t, strings.ContainsAny(out, steers))
	for i, r := range records(t, out) {
		if text, ok := r["data"]; ok {
			require.Equal(t, hostile[i], text, "JSON keeps what it escapes")
		} else {
			require.Equal(t, "//4=", r["data_base64"])
		}
	}
	screen, _, err := p.do(call{screen: true}, "receive", "jobs", "-n", "9")
	require.NoError(t, err)
	require.False(t, strings.ContainsAny(screen, steers))
	require.Contains(t, screen, "tab\tline\nreturn\\r\n")
	p.send("jobs", hostile[0])
	require.Equal(t, hostile[0]+"\n", p.ok("receive", "jobs"), "a pipe gets the bytes")
}
