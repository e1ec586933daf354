package boot

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/alecthomas/kong"
)

// CommandLine describes what a program takes from its arguments and environment.
type CommandLine struct {
	Program     string
	Description string
	Services    []string // whose settings it has: their names in the environment are checked
	Secrets     []string // environment names that may be given as files
	// Besides are environment names that a command, by its full name, reads beside those of its flags; may be nil.
	Besides func(command string) []string
}

// Parse fills cli, a kong grammar, from the arguments and the environment, and
// reports every problem that it sees. Help goes to standard output and ends the
// process.
func (c CommandLine) Parse(cli any, args []string, options ...kong.Option) (*kong.Context, error) {
	if err := ReadSecretFiles(c.Secrets...); err != nil {
		return nil, err
	}
	options = append([]kong.Option{
		kong.Name(c.Program), kong.Description(c.Description), kong.Help(wholeHelp),
	}, options...)
	parser, err := kong.New(cli, options...)
	if err != nil {
		return nil, fmt.Errorf("command line: %w", err)
	}
	parsed, err := parser.Parse(args)
	// A misspelt name is often why something else is missing, so it comes first.
	known := KnownEnv(parser.Model)
	if c.Besides != nil && parsed != nil {
		known = append(known, c.Besides(parsed.Command())...)
	}
	misspelt := CheckEnv(os.Environ(), c.Services, known, c.Secrets)
	if err == nil && misspelt == nil {
		err = checkZeros(parsed.Flags())
	}
	if err = errors.Join(misspelt, err); err != nil {
		return nil, fmt.Errorf("%w (see %s --help)", err, c.Program)
	}
	return parsed, nil
}

// wholeHelp is kong's help; that of the whole program goes on with the settings
// of its command run, since they are what most readers want.
func wholeHelp(options kong.HelpOptions, ctx *kong.Context) error {
	if err := kong.DefaultHelpPrinter(options, ctx); err != nil || ctx.Selected() != nil {
		return err
	}
	run, err := kong.Trace(ctx.Kong, []string{"run"})
	if err != nil {
		return err
	}
	if _, err := io.WriteString(ctx.Stdout, "\n"); err != nil {
		return err
	}
	return kong.DefaultHelpPrinter(options, run)
}

// checkZeros refuses a setting that was set to nothing or to zero where its
// default is something else: to the services a zero means the default, so it
// would be silently without effect.
func checkZeros(flags []*kong.Flag) error {
	var problems []string
	for _, f := range flags {
		value := fmt.Sprint(f.Target.Interface())
		// Some zeros are values, such as the log level "info": then they are the default.
		if !f.HasDefault || !f.Target.IsZero() || strings.EqualFold(value, f.Default) {
			continue
		}
		if value == "" {
			value = "empty"
		}
		problems = append(problems, fmt.Sprintf("%s must not be %s", settingName(f), value))
	}
	if len(problems) == 0 {
		return nil
	}
	return errors.New(strings.Join(problems, "; "))
}

// settingName is the name in the environment, or the flag of a setting that has none.
func settingName(f *kong.Flag) string {
	if len(f.Envs) == 0 {
		return "--" + f.Name
	}
	return strings.Join(f.Envs, " or ")
}

// oneLine is a message without line breaks, and without parts that are there
// twice: joined errors and drivers that tried several addresses bring both.
func oneLine(err error) string {
	var parts []string
	seen := map[string]bool{}
	for part := range strings.SplitSeq(err.Error(), "\n") {
		if part = strings.TrimSpace(part); part != "" && !seen[part] {
			seen[part] = true
			parts = append(parts, part)
		}
	}
	joined := strings.Join(parts, "; ")
	return strings.ReplaceAll(joined, ":; ", ": ") // a heading and its list
}
