// Command suite runs all of Pillarbox in one process, and is the operator's
// tool.
package main

import (
	"os"

	"github.com/alecthomas/kong"

	"github.com/pillarbox/pillarbox/services/internal/boot"
	"github.com/pillarbox/pillarbox/services/suite/all"
)

// commands is the table of subcommands, one file each.
type commands struct {
	Run runCommand `cmd:"" help:"Run all services in this process: SQLite files and an embedded NATS server under one folder."`
}

func main() {
	var cli commands
	parser, err := kong.New(&cli,
		kong.Name("suite"),
		kong.Description("Pillarbox: an order in, exactly one e-mail, one audit record and one credit out. Settings are flags or environment variables."),
		kong.UsageOnError(),
	)
	if err != nil {
		boot.Exit("suite", err)
	}
	parsed, err := parser.Parse(os.Args[1:])
	parser.FatalIfErrorf(err)
	if err := boot.CheckEnv(os.Environ(), all.Names(), boot.KnownEnv(parser.Model), nil); err != nil {
		boot.Exit("suite", err)
	}
	boot.Exit("suite", parsed.Run())
}
