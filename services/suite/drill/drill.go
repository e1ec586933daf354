// Package drill is the command "suite drill": it starts a suite of the same
// program with the user's settings on a scratch folder, lets shops place, change
// and cancel orders, kills, freezes and stops the suite at random meanwhile, and
// then compares what shops were answered with the mails, the audit log and the
// points.
//
// It promises that the user's own data folder is neither read nor changed, that
// no mail leaves the machine, and that the scratch folder and the process go
// when it ends, also by Ctrl-C. Killed itself, it takes the suite with it and
// leaves the scratch folder, which is called pillarbox-drill-….
//
// A kill is that of a process: the operating system keeps what it was given. What
// a power loss takes is not seen here.
package drill

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/pillarbox/pillarbox/services/suite/terminal"
)

// Command is "suite drill".
type Command struct {
	Data     string        `name:"data" env:"PILLARBOX_DATA" default:"./data" type:"path" help:"Data folder of the suite whose disk is tried: the scratch folder is made beside it. What is in it is neither read nor changed."`
	Duration time.Duration `name:"duration" default:"1m" help:"Time of load and faults (1s to 1h)."`
	Faults   int           `name:"faults" default:"0" help:"So many faults instead of a time (1 to 500; 0: the time decides)."`
	Seed     uint64        `name:"seed" default:"0" help:"Decides what requests and faults come in which order, not when exactly (0: a new one, which is printed)."`
	Rate     float64       `name:"rate" default:"20" help:"Requests per second, about (1 to 100)."`
	Freeze   time.Duration `name:"freeze" default:"7s" help:"How long a freeze lasts (100ms to 1m). The default is longer than acknowledgement deadlines and leases."`
	Settle   time.Duration `name:"settle" default:"30s" help:"What has not come after a time in which nothing came at all is lost (1s to 10m)."`
	Keep     bool          `name:"keep" help:"Leave the scratch folder, with the suite's log."`
	JSON     bool          `name:"json" help:"Print the report as one object."`
	Settings []string      `arg:"" optional:"" name:"setting" help:"Flags of suite run, after --."`

	Out     io.Writer `kong:"-"` // default standard output
	Program string    `kong:"-"` // default this program
}

// Help is the end of the command's help.
func (Command) Help() string {
	return `The suite has the settings of the environment and of flags after --, as in: suite drill --faults 20 -- --mailer-mode=single.
Its addresses and folders are the drill's own, and its mails go to a pickup folder in the scratch folder whatever the
transport is.

Exit status: 0 clean, 1 something was lost, doubled, reordered or wrong, 2 the drill could not be done.`
}

// Validate is called by the command line.
func (c *Command) Validate() error {
	var errs []error
	check := func(ok bool, problem string) {
		if !ok {
			errs = append(errs, errors.New(problem))
		}
	}
	check(c.Duration >= time.Second && c.Duration <= time.Hour, "--duration must be 1s to 1h")
	check(c.Faults >= 0 && c.Faults <= 500, "--faults must be 0 to 500")
	check(c.Rate >= 1 && c.Rate <= 100, "--rate must be 1 to 100")
	check(c.Freeze >= 100*time.Millisecond && c.Freeze <= time.Minute, "--freeze must be 100ms to 1m")
	check(c.Settle >= time.Second && c.Settle <= 10*time.Minute, "--settle must be 1s to 10m")
	return errors.Join(errs...)
}

// Run drills, reports and returns an error with the exit status.
func (c *Command) Run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return c.RunContext(ctx)
}

// RunContext is Run until ctx ends.
func (c *Command) RunContext(ctx context.Context) error {
	if c.Out == nil {
		c.Out = os.Stdout
	}
	if c.Seed == 0 {
		c.Seed = uint64(time.Now().UnixNano())
	}
	if !c.JSON {
		fmt.Fprintf(c.Out, "seed %d\n", c.Seed)
	}
	report, err := c.rehearse(ctx)
	if ctx.Err() != nil {
		return terminal.Exit(2, fmt.Sprintf("drill interrupted (seed %d)", c.Seed))
	}
	if err != nil {
		return terminal.Exit(2, fmt.Sprintf("drill (seed %d): %v", c.Seed, err))
	}
	if err := report.print(c.Out, c.JSON); err != nil {
		return terminal.Exit(2, err.Error())
	}
	if !report.Clean {
		return terminal.Exit(1, report.verdict())
	}
	return nil
}
