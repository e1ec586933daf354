package queue_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/pillarbox/pillarbox/services/suite/all"
	"github.com/pillarbox/pillarbox/services/suite/inprocess"
	"github.com/pillarbox/pillarbox/services/suite/queue"
	"github.com/pillarbox/pillarbox/services/suite/terminal"
	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/broker/brokertest"
	"github.com/pillarbox/pillarbox/shared/logs"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(status int) {
		_ = os.Remove(programPath()) // when a test built it
		os.Exit(status)
	}))
}

const (
	soon     = 15 * time.Second // for anything that a test waits for
	waitTick = 10 * time.Millisecond
)

// place is where a test's queues are: its arguments are the address.
type place struct {
	t       testing.TB
	address []string
	dir     string // "" at a NATS URL
}

// each runs a test at the three kinds of address.
func each(t *testing.T, test func(t *testing.T, p *place)) {
	t.Helper()
	for name, open := range map[string]func(testing.TB) *place{"folder": folder, "suite": running, "nats": server} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, open(t))
		})
	}
}

func folder(t testing.TB) *place {
	dir := filepath.Join(t.TempDir(), "data")
	require.NoError(t, os.Mkdir(dir, 0o755))
	return &place{t, []string{"--data", dir}, dir}
}

func running(t testing.TB) *place {
	p := folder(t)
	p.startSuite()
	return p
}

func server(t testing.TB) *place {
	s := brokertest.Server(t)
	return &place{t, []string{"--nats", strings.Replace(s.ClientURL(), "://", "://"+s.Token()+"@", 1)}, ""}
}

// startSuite runs a suite on the folder until the test ends or stop is called.
func (p *place) startSuite() (stop func()) {
	p.t.Helper()
	var settings struct {
		all.Settings `embed:""`
	}
	parser, err := kong.New(&settings)
	require.NoError(p.t, err)
	_, err = parser.Parse(nil) // the defaults
	require.NoError(p.t, err)
	ctx, cancel := stoppable(p.t)
	suite, err := inprocess.Start(ctx, inprocess.Config{
		Data: p.dir, HTTP: "127.0.0.1:0", Admin: "127.0.0.1:0", Settings: settings.Settings,
	}, logs.Discard())
	require.NoError(p.t, err)
	stop = func() {
		cancel()
		require.NoError(p.t, suite.Wait())
	}
	p.t.Cleanup(stop)
	return stop
}

// connect returns a connection to the place's broker, which must be served.
func (p *place) connect() *broker.Conn {
	p.t.Helper()
	if p.dir == "" {
		return brokertest.ConnectURL(p.t, p.address[1])
	}
	text, err := os.ReadFile(filepath.Join(p.dir, "run.json"))
	require.NoError(p.t, err)
	var run inprocess.RunFile
	require.NoError(p.t, json.Unmarshal(text, &run))
	return brokertest.ConnectURL(p.t, strings.Replace(run.NATSURL, "://", "://"+run.NATSToken+"@", 1))
}

// call is one run of a command.
type call struct {
	in     string
	out    io.Writer
	stop   <-chan struct{}
	person bool
	screen bool
}

// do runs a command and returns what it wrote.
func (p *place) do(c call, args ...string) (out, notes string, err error) {
	p.t.Helper()
	var cli struct {
		Queue queue.Commands `cmd:""`
	}
	var outBuffer, errBuffer bytes.Buffer
	s := &terminal.Streams{
		In: strings.NewReader(c.in), Out: c.out, Err: &errBuffer, Stop: c.stop, Person: c.person, Screen: c.screen,
	}
	if s.Out == nil {
		s.Out = &outBuffer
	}
	if s.Stop == nil {
		s.Stop = make(chan struct{})
	}
	cli.Queue.Streams = s
	parser, err := kong.New(&cli)
	require.NoError(p.t, err)
	parsed, err := parser.Parse(append(append([]string{"queue"}, p.address...), args...))
	if err == nil {
		err = parsed.Run()
	}
	return outBuffer.String(), errBuffer.String(), err
}

// ok runs a command that must succeed and returns its output.
func (p *place) ok(args ...string) string {
	p.t.Helper()
	out, _, err := p.do(call{}, args...)
	require.NoError(p.t, err, "%v", args)
	return out
}

// send sends each of the texts as a message.
func (p *place) send(topic string, texts ...string) {
	p.t.Helper()
	for _, text := range texts {
		_, _, err := p.do(call{in: text}, "send", topic)
		require.NoError(p.t, err)
	}
}

// refused runs a command that must fail, with a reason, and change nothing.
func (p *place) refused(reason string, args ...string) {
	p.t.Helper()
	_, _, err := p.do(call{}, args...)
	require.ErrorContains(p.t, err, reason, "%v", args)
}

// records are the objects that a command prints with --json.
func records(t testing.TB, out string) (found []map[string]any) {
	t.Helper()
	for line := range strings.Lines(out) {
		var one map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &one), line)
		found = append(found, one)
	}
	return found
}

// consumer is what ls says of a consumer, or nil.
func (p *place) consumer(queueName, name string) map[string]any {
	p.t.Helper()
	for _, q := range records(p.t, p.ok("ls", queueName, "--json")) {
		for _, c := range q["consumers"].([]any) {
			if one := c.(map[string]any); one["consumer"] == name {
				return one
			}
		}
	}
	return nil
}

func status(err error) int {
	var s interface{ ExitStatus() int }
	if errors.As(err, &s) {
		return s.ExitStatus()
	}
	return 1
}
