// Package queue holds the operator's commands over queues: suite queue create, ls, info, peek, send, receive, purge,
// pause, resume and rm. A queue is a JetStream stream; a consumer is one group of readers with a position of its own.
//
// They work on a running suite, on its folder when no suite runs, and on any NATS server. What destroys
// asks a person first and wants --yes of a script. A message is acknowledged after it was written out, so a crash
// of receive shows it again and loses none.
package queue

import (
	"context"
	"errors"
	"time"

	"github.com/pillarbox/pillarbox/services/suite/terminal"
	"github.com/pillarbox/pillarbox/shared/broker"
)

// DefaultConsumer is the group that receive and peek use when none is named.
const DefaultConsumer = "tool"

// apiTimeout bounds what must still happen after the command was told to stop.
const apiTimeout = 5 * time.Second

// Commands is the table of subcommands, one file each.
type Commands struct {
	Address `embed:""`
	JSON    bool `name:"json" help:"Print JSON, one object per line."`

	Create  createCommand  `cmd:"" help:"Make a queue, and consumers of it."`
	List    listCommand    `cmd:"" name:"ls" help:"List queues and their consumers: depth, in flight, redelivered, age of the oldest."`
	Info    infoCommand    `cmd:"" help:"Show all about one queue."`
	Peek    peekCommand    `cmd:"" help:"Show messages; nobody's position changes."`
	Send    sendCommand    `cmd:"" help:"Send a file, or standard input, as a message."`
	Receive receiveCommand `cmd:"" help:"Take messages: print each and acknowledge it. Waits until one is there."`
	Purge   purgeCommand   `cmd:"" help:"Remove messages from a queue."`
	Pause   pauseCommand   `cmd:"" help:"Give out nothing to a consumer, or to all of a queue."`
	Resume  resumeCommand  `cmd:"" help:"End a pause."`
	Remove  removeCommand  `cmd:"" name:"rm" help:"Remove a consumer, also from the store's list, or a whole queue."`

	// Streams replaces standard input, output and error; nil: the process's own.
	Streams *terminal.Streams `kong:"-"`
}

// Help is the end of the help of the group.
func (Commands) Help() string {
	return `The queues are those of the running suite of --data, of that folder itself when no suite runs on it, or of the
servers of --nats. Of --data and --nats, the one on the command line counts; else PILLARBOX_NATS_URL, when set, goes
before PILLARBOX_DATA.

` + statusHelp + `, 3 when receive --timeout ended without a message.`
}

const statusHelp = "Exit status: 0 when done, 1 on an error or when not confirmed"

// statuses is the end of the help of a command that knows only success and failure.
type statuses struct{}

// Help names the exit statuses.
func (statuses) Help() string { return statusHelp + "." }

// work is an open broker and what a command needs to talk to its caller.
type work struct {
	*broker.Conn
	*terminal.Streams
	json        bool
	yes         bool
	address     Address
	folder      string // set while this process has opened the data folder
	suite       bool   // the broker is a running suite's
	closeBroker func() error
}

// run opens the broker, does the job and closes it again.
func (c *Commands) run(do func(context.Context, *work) error) (err error) {
	w := &work{Streams: c.Streams, json: c.JSON, address: c.Address}
	if w.Streams == nil {
		w.Streams = terminal.Standard()
	}
	ctx, stop := w.Context()
	defer stop()
	if err = w.open(ctx); err == nil {
		err = do(ctx, w)
	}
	err = errors.Join(err, w.close())
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		// Half a job is not a success, so a stop is told as what it was.
		return errors.New("interrupted")
	}
	return err
}

// confirm asks before something is destroyed.
func (w *work) confirm(ctx context.Context, format string, args ...any) error {
	return w.Confirm(ctx, w.yes, format, args...)
}
