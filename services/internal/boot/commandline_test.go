package boot_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/internal/boot"
)

// grammar is what a service program has, with settings of every kind.
type grammar struct {
	boot.Connection `embed:""`
	boot.API        `embed:""`
	Drain           time.Duration `name:"drain" env:"PILLARBOX_AUDIT_DRAIN" default:"8s"`
	Batch           int           `name:"batch" env:"PILLARBOX_AUDIT_BATCH" default:"100"`
	Offset          int           `name:"offset" env:"PILLARBOX_AUDIT_OFFSET" default:"0"`
	Verbose         bool          `name:"verbose" env:"PILLARBOX_AUDIT_VERBOSE"`
}

func parse(args ...string) (grammar, error) {
	var g grammar
	_, err := boot.CommandLine{
		Program: "audit", Services: []string{"audit"},
		Secrets: []string{"PILLARBOX_AUDIT_DATABASE_URL", "PILLARBOX_DATABASE_URL"},
	}.Parse(&g, args, kong.Vars{"ENV": "PILLARBOX_AUDIT", "http": "127.0.0.1:8081", "admin": "127.0.0.1:9081"})
	return g, err
}

// setEnv sets the given names; every other name of the tests is unset.
func setEnv(t *testing.T, env map[string]string) {
	t.Helper()
	for _, name := range []string{
		"PILLARBOX_AUDIT_DATABASE_URL", "PILLARBOX_DATABASE_URL", "PILLARBOX_AUDIT_DATABASE_URL_FILE", "PILLARBOX_DATABASE_URL_FILE",
		"PILLARBOX_AUDIT_NATS_URL", "PILLARBOX_NATS_URL", "PILLARBOX_AUDIT_DRAIN", "PILLARBOX_AUDIT_BATCH",
	} {
		unset(t, name)
	}
	for name, value := range env {
		t.Setenv(name, value)
	}
}

// The environment is the process's, so these tests cannot run at once.
func TestDefaults(t *testing.T) {
	setEnv(t, nil)
	g, err := parse()
	require.NoError(t, err)
	require.Equal(t, "127.0.0.1:8081", g.HTTP)
	require.Equal(t, "127.0.0.1:9081", g.Admin)
	require.Equal(t, "nats://127.0.0.1:4222", g.NATSURL)
	require.Equal(t, slog.LevelInfo, g.Level)
	require.Equal(t, 8*time.Second, g.Drain)
}

func TestPrecedence(t *testing.T) {
	dir := t.TempDir()
	file := func(content string) string {
		path := filepath.Join(dir, content)
		require.NoError(t, os.WriteFile(path, []byte(content+"\n"), 0o600))
		return path
	}
	for name, c := range map[string]struct {
		env  map[string]string
		args []string
		want string
	}{
		"for all services":          {map[string]string{"PILLARBOX_DATABASE_URL": "all"}, nil, "all"},
		"for this one":              {map[string]string{"PILLARBOX_AUDIT_DATABASE_URL": "audit"}, nil, "audit"},
		"this one over all":         {map[string]string{"PILLARBOX_AUDIT_DATABASE_URL": "audit", "PILLARBOX_DATABASE_URL": "all"}, nil, "audit"},
		"its file over all":         {map[string]string{"PILLARBOX_AUDIT_DATABASE_URL_FILE": file("secret"), "PILLARBOX_DATABASE_URL": "all"}, nil, "secret"},
		"it over the file for all":  {map[string]string{"PILLARBOX_AUDIT_DATABASE_URL": "audit", "PILLARBOX_DATABASE_URL_FILE": file("shared")}, nil, "audit"},
		"its file over one for all": {map[string]string{"PILLARBOX_AUDIT_DATABASE_URL_FILE": file("own"), "PILLARBOX_DATABASE_URL_FILE": file("shared")}, nil, "own"},
		"the flag over everything":  {map[string]string{"PILLARBOX_AUDIT_DATABASE_URL": "audit", "PILLARBOX_DATABASE_URL": "all"}, []string{"--database-url", "flag"}, "flag"},
	} {
		t.Run(name, func(t *testing.T) {
			setEnv(t, c.env)
			g, err := parse(c.args...)
			require.NoError(t, err)
			require.Equal(t, c.want, g.DatabaseURL)
		})
	}
	t.Run("each setting by itself", func(t *testing.T) {
		setEnv(t, map[string]string{"PILLARBOX_AUDIT_NATS_URL": "nats://audit", "PILLARBOX_DATABASE_URL": "all", "PILLARBOX_NATS_URL": "nats://all"})
		g, err := parse()
		require.NoError(t, err)
		require.Equal(t, "nats://audit", g.NATSURL)
		require.Equal(t, "all", g.DatabaseURL)
	})
}

func TestCommandLineProblems(t *testing.T) {
	for name, c := range map[string]struct {
		env  map[string]string
		args []string
		want string
	}{
		"zero":              {map[string]string{"PILLARBOX_AUDIT_DRAIN": "0"}, nil, "PILLARBOX_AUDIT_DRAIN must not be 0s"},
		"zero by flag":      {nil, []string{"--batch=0"}, "PILLARBOX_AUDIT_BATCH must not be 0"},
		"empty":             {map[string]string{"PILLARBOX_NATS_URL": ""}, nil, "PILLARBOX_AUDIT_NATS_URL or PILLARBOX_NATS_URL must not be empty"},
		"no number":         {map[string]string{"PILLARBOX_AUDIT_BATCH": "many"}, nil, `PILLARBOX_AUDIT_BATCH="many"`},
		"no unit":           {map[string]string{"PILLARBOX_AUDIT_DRAIN": "8"}, nil, `PILLARBOX_AUDIT_DRAIN="8"`},
		"unknown flag":      {nil, []string{"--bogus"}, "unknown flag --bogus"},
		"misspelt":          {map[string]string{"PILLARBOX_AUDIT_BACTH": "1"}, nil, "did you mean PILLARBOX_AUDIT_BATCH?"},
		"misspelt and more": {map[string]string{"PILLARBOX_AUDIT_BACTH": "1"}, []string{"--bogus"}, "did you mean PILLARBOX_AUDIT_BATCH?\nunknown flag --bogus"},
		"secret's file":     {map[string]string{"PILLARBOX_DATABASE_URL_FILE": "/none"}, nil, "PILLARBOX_DATABASE_URL_FILE"},
	} {
		t.Run(name, func(t *testing.T) {
			setEnv(t, c.env)
			_, err := parse(c.args...)
			require.ErrorContains(t, err, c.want)
		})
	}
	t.Run("zeros that are values", func(t *testing.T) {
		setEnv(t, nil)
		_, err := parse("--log-level=INFO", "--offset=0", "--verbose=false")
		require.NoError(t, err)
	})
}
