package drill

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/pillarbox/pillarbox/services/internal/boot"
	"github.com/pillarbox/pillarbox/services/suite/all"
)

// ours are the names in the environment that the drill decides itself.
var ours = [...]string{
	"PILLARBOX_DATA", "PILLARBOX_HTTP", "PILLARBOX_ADMIN", "PILLARBOX_NATS_URL",
	"PILLARBOX_MAILER_PICKUP", "PILLARBOX_MAILER_TRANSPORT", "PILLARBOX_MAILER_SMTP_PASSWORD", "PILLARBOX_MAILER_SMTP_ROOTS",
}

// check reports what the drill cannot be done with.
func (c *Command) check() error {
	var run struct {
		boot.Strictness `embed:""`
		boot.Logging    `embed:""`
		all.Settings    `embed:""`
	}
	parser, err := kong.New(&run, kong.Name("suite run"))
	if err != nil {
		return fmt.Errorf("settings: %w", err)
	}
	if _, err := parser.Parse(c.Settings); err != nil {
		return fmt.Errorf("settings of the suite: %w", err)
	}
	if err := run.Settings.Validate(); err != nil {
		return fmt.Errorf("settings of the suite: %w", err)
	}
	if run.Store.Intake == "async" {
		return errors.New("PILLARBOX_STORE_INTAKE: an answer of async intake is no promise that a drill could check")
	}
	if run.Store.Fanout == "sequential" {
		route := strings.Split(run.Store.FanoutRoute, ",")
		for i := range route {
			route[i] = strings.TrimSpace(route[i])
		}
		for _, name := range all.Names()[1:] {
			if !slices.Contains(route, name) {
				return fmt.Errorf("PILLARBOX_FANOUT_ROUTE: %s gets no events, so the drill would find all of them lost there", name)
			}
		}
	}
	return nil
}

// environment is what the suite gets of ours: Pillarbox's names without those that the drill decides.
func environment() []string {
	env := []string{"PILLARBOX_LOG_LEVEL=warn"} // of two the last one counts
	for _, entry := range os.Environ() {
		name, _, _ := strings.Cut(entry, "=")
		plain := strings.TrimSuffix(name, "_FILE")
		if !strings.HasPrefix(name, "PILLARBOX_") && name != "TZ" && name != "TMPDIR" || slices.Contains(ours[:], plain) {
			continue
		}
		env = append(env, entry)
	}
	return env
}
