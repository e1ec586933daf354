// Command suite runs all of Pillarbox in one process, and is the operator's
// tool.
package main

import (
	"os"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/pillarbox/pillarbox/services/internal/boot"
	"github.com/pillarbox/pillarbox/services/mailer/mailersvc"
	"github.com/pillarbox/pillarbox/services/suite/all"
	"github.com/pillarbox/pillarbox/services/suite/bench"
	"github.com/pillarbox/pillarbox/services/suite/demo"
	"github.com/pillarbox/pillarbox/services/suite/doctor"
	"github.com/pillarbox/pillarbox/services/suite/drill"
	"github.com/pillarbox/pillarbox/services/suite/queue"
	"github.com/pillarbox/pillarbox/services/suite/reconcile"
	"github.com/pillarbox/pillarbox/services/suite/terminal"
	"github.com/pillarbox/pillarbox/services/suite/unhandled"
)

// commands is the table of subcommands, one file each.
type commands struct {
	Run       runCommand        `cmd:"" help:"Run all services in this process: SQLite files and an embedded NATS server under one folder."`
	Queue     queue.Commands    `cmd:"" help:"Look at queues and work on them: of a running suite, of its folder, or of any NATS server."`
	Parked    unhandled.Parked  `cmd:"" help:"Look at events that wait, and settle them: through the admin port of a running suite or service, or in a suite's folder."`
	Dead      unhandled.Dead    `cmd:"" help:"Look at dead letters, drop them or do them again: through the admin port of a running suite or service, or in a suite's folder."`
	Doctor    doctor.Command    `cmd:"" help:"Look for what endangers the promises: in a suite's folder, running or not, or at the separate services."`
	Drill     drill.Command     `cmd:"" help:"Kill, freeze and stop a suite with these settings under load, on a scratch folder, and compare what shops were answered with what took effect (Linux)."`
	Reconcile reconcile.Command `cmd:"" help:"Prove that nothing is lost, doubled or made up, or name it: on a running suite, its folder, or separate services."`
	Bench     bench.Commands    `cmd:"" help:"Measure on this machine, in a scratch folder."`
	Demo      demo.Command      `cmd:"" help:"Show what a dispatch strategy does: three workers of 1, 2 and 3 time units and nine messages, who handled what from when to when."`
}

func main() {
	boundHeap()
	var cli commands
	parsed, err := boot.CommandLine{
		Program:     "suite",
		Description: "Pillarbox: an order in, exactly one e-mail, one audit record and one credit out. Settings are flags or environment variables.",
		Services:    all.Names(),
		Secrets:     append([]string{"PILLARBOX_NATS_URL"}, mailersvc.Secrets()...),
		Besides: func(command string) []string {
			if command == "doctor" {
				return doctor.EnvNames()
			}
			return nil
		},
	}.Parse(&cli, os.Args[1:], kong.Vars{"services": strings.Join(all.Names(), ",")})
	if err != nil {
		boot.Exit("suite", refused(os.Args[1:], err))
	}
	boot.Exit("suite", parsed.Run())
}

// boundHeap lets the heap grow by half before the collector runs, not to the double: four services and a broker that remembers
// the ids of two minutes are a person's companion on a laptop. At the same speed it saves 20 MB in 100,000 orders, and 80 MB in
// a queue of large mails.
func boundHeap() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50)
	}
}

// refused is a mistake on the command line with the status of what could not be done: these commands end with 1 when
// they found something.
func refused(args []string, err error) error {
	if len(args) > 0 && slices.Contains([]string{"doctor", "drill", "reconcile"}, args[0]) {
		return terminal.Exit(2, err.Error())
	}
	return err
}
