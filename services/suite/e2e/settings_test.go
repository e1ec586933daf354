package e2e_test

import (
	"bytes"
	"context"
	"iter"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/suite/all"
)

// ran is how a program ended.
type ran struct {
	status         int
	stdout, stderr string
}

// run runs a program to its end with nothing in its environment but env.
func run(t *testing.T, program string, env []string, args ...string) ran {
	t.Helper()
	b, err := binaries()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(b.Dir, program), args...)
	cmd.Env, cmd.Dir = append([]string{"COLUMNS=80"}, env...), t.TempDir()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	require.NoError(t, ctx.Err(), "%s %v did not end: %s", program, args, &stderr)
	if err != nil {
		var ended *exec.ExitError
		require.ErrorAs(t, err, &ended)
	}
	return ran{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// refused requires one line on standard error, status 1 and nothing else.
func (r ran) refused(t *testing.T) string {
	t.Helper()
	require.Equal(t, 1, r.status, r.stderr)
	require.Empty(t, r.stdout)
	require.Equal(t, 1, strings.Count(r.stderr, "\n"), "not one line: %q", r.stderr)
	return r.stderr
}

// setting is one field of a service's settings, as its tags describe it.
type setting struct{ flag, env, standard, help string }

func settingsOf(service reflect.Type) []setting {
	var found []setting
	for field, prefix := range fieldsOf(service, "") {
		tag := field.Tag
		found = append(found, setting{tag.Get("name"), prefix + tag.Get("env"), tag.Get("default"), tag.Get("help")})
	}
	return found
}

// fieldsOf walks a service's settings and those embedded in them, with the
// prefix of their environment names.
func fieldsOf(service reflect.Type, prefix string) iter.Seq2[reflect.StructField, string] {
	return func(yield func(reflect.StructField, string) bool) {
		for field := range service.Fields() {
			if !field.Anonymous {
				if !yield(field, prefix) {
					return
				}
				continue
			}
			for inner, prefix := range fieldsOf(field.Type, prefix+field.Tag.Get("envprefix")) {
				if !yield(inner, prefix) {
					return
				}
			}
		}
	}
}

// squeezed undoes the line breaks of help.
func squeezed(text string) string { return strings.Join(strings.Fields(text), " ") }

func TestHelpNamesEverySetting(t *testing.T) {
	t.Parallel()
	suite := run(t, "suite", nil, "run", "--help")
	require.Zero(t, suite.status)
	services := reflect.TypeOf(all.Settings{})
	require.Equal(t, len(all.Names()), services.NumField())
	for i, service := range all.Names() {
		short, long := run(t, service, nil, "--help"), run(t, service, nil, "run", "--help")
		require.Zero(t, short.status)
		require.Zero(t, long.status)
		require.Empty(t, short.stderr)
		require.Contains(t, short.stdout, long.stdout, "help of the whole program leaves settings out")
		require.Contains(t, short.stdout, "health")
		prefix := "PILLARBOX_" + strings.ToUpper(service)
		want := []setting{
			{"database-url", prefix + "_DATABASE_URL", "", "Required."}, {"database-url", "PILLARBOX_DATABASE_URL", "", ""},
			{"migrate-url", prefix + "_MIGRATE_URL", "", "(default: the database URL)"},
			{"nats-url", prefix + "_NATS_URL", `"nats://127.0.0.1:4222"`, ""}, {"nats-url", "PILLARBOX_NATS_URL", "", ""},
			{"admin", prefix + "_ADMIN", `"127.0.0.1:`, ""}, {"database-connections", prefix + "_DATABASE_CONNECTIONS", "8", "(2 to 1000)"},
			{"log-level", "PILLARBOX_LOG_LEVEL", "info", ""}, {"log-format", "PILLARBOX_LOG_FORMAT", `"text"`, ""},
		}
		if service != "mailer" {
			want = append(want, setting{"http", prefix + "_HTTP", `"127.0.0.1:`, ""})
		}
		own := settingsOf(services.Field(i).Type)
		for _, s := range append(want, own...) {
			help := squeezed(long.stdout)
			require.Contains(t, help, "--"+s.flag+"=", service)
			require.Regexp(t, regexp.MustCompile(`\$`+s.env+`[,)]`), help, service)
			require.Contains(t, help, squeezed(strings.TrimSuffix(s.help, ".")), service)
			if s.standard != "" {
				require.Regexp(t, regexp.MustCompile("--"+s.flag+`="?`+regexp.QuoteMeta(strings.Trim(s.standard, `"`))), help, service)
			}
		}
		for _, s := range own {
			require.Regexp(t, regexp.MustCompile(`\$`+s.env+`[,)]`), squeezed(suite.stdout))
			require.Contains(t, squeezed(suite.stdout), "--"+service+"-"+s.flag+"=")
			// How events fan out is a setting of the whole line, though only the store reads it.
			require.True(t, strings.HasPrefix(s.env, prefix+"_") || strings.HasPrefix(s.env, "PILLARBOX_FANOUT"), "%s of %s", s.env, service)
			require.True(t, s.standard != "" || strings.Contains(strings.ToLower(s.help), "default"), "%s has no default", s.env)
		}
	}
}

// TestHelpTellsTheUnit: numbers and durations have their range in the help, with
// a unit or with what is counted.
func TestHelpTellsTheUnit(t *testing.T) {
	t.Parallel()
	services := reflect.TypeOf(all.Settings{})
	for i := range services.NumField() {
		for field, prefix := range fieldsOf(services.Field(i).Type, "") {
			help, env := field.Tag.Get("help"), prefix+field.Tag.Get("env")
			switch {
			case field.Type == reflect.TypeFor[time.Duration]():
				require.Regexp(t, `\(\d+(ms|s|m|h) to \d+(ms|s|m|h)\)\.$`, help, env)
			case field.Type.Kind() != reflect.String:
				require.Regexp(t, `\([^()]*\d[^()]*\)\.$`, help, env)
			}
		}
	}
}

func TestBadSettingsAreRefusedInOneLine(t *testing.T) {
	t.Parallel()
	const database = "PILLARBOX_DATABASE_URL=postgres://127.0.0.1:1/none"
	for name, c := range map[string]struct {
		program string
		env     []string
		args    []string
		want    []string
	}{
		"no database":          {"store", nil, nil, []string{"PILLARBOX_STORE_DATABASE_URL or PILLARBOX_DATABASE_URL must be set"}},
		"database of the kind": {"audit", []string{"PILLARBOX_DATABASE_URL=sqlite:x.db"}, nil, []string{"postgres://"}},
		"migration's database": {"store", []string{database, "PILLARBOX_STORE_MIGRATE_URL=x"}, nil, []string{"PILLARBOX_STORE_MIGRATE_URL"}},
		"broker":               {"mailer", []string{database, "PILLARBOX_NATS_URL=127.0.0.1"}, nil, []string{"PILLARBOX_NATS_URL"}},
		"address":              {"store", []string{database, "PILLARBOX_STORE_HTTP=8080", "PILLARBOX_STORE_ADMIN=x:y"}, nil, []string{"PILLARBOX_STORE_HTTP", "PILLARBOX_STORE_ADMIN"}},
		"range, two at once":   {"store", []string{database, "PILLARBOX_STORE_DRAIN=1ms", "PILLARBOX_STORE_HORIZON=1s"}, nil, []string{"PILLARBOX_STORE_DRAIN must be 100ms", "PILLARBOX_STORE_HORIZON must be 1h"}},
		"two kinds at once":    {"loyalty", []string{"PILLARBOX_LOYALTY_DATABASE_CONNECTIONS=1001"}, nil, []string{"PILLARBOX_DATABASE_URL", "PILLARBOX_LOYALTY_DATABASE_CONNECTIONS must be 2 to 1000"}},
		"zero":                 {"loyalty", []string{database, "PILLARBOX_LOYALTY_BATCH=0"}, nil, []string{"PILLARBOX_LOYALTY_BATCH must not be 0"}},
		"misspelt":             {"mailer", []string{database, "PILLARBOX_MAILER_PICKUPS=x"}, nil, []string{"did you mean PILLARBOX_MAILER_PICKUP?"}},
		"mailer has no API":    {"mailer", []string{database, "PILLARBOX_MAILER_HTTP=x"}, nil, []string{"PILLARBOX_MAILER_HTTP is not a setting"}},
		"flag":                 {"mailer", []string{database}, []string{"--drian=1s"}, []string{"--drian"}},
		"command":              {"store", []string{database}, []string{"stop"}, []string{"stop"}},
		"secret's file":        {"store", []string{"PILLARBOX_STORE_DATABASE_URL_FILE=/none"}, nil, []string{"PILLARBOX_STORE_DATABASE_URL_FILE", "no such file"}},
		"suite, misspelt":      {"suite", []string{"PILLARBOX_STORE_INTAKE_QUEU=1"}, []string{"run"}, []string{"did you mean PILLARBOX_STORE_INTAKE_QUEUE?"}},
		"suite, of programs":   {"suite", []string{database, "PILLARBOX_STORE_DATABASE_URL=postgres://x"}, []string{"run"}, []string{"PILLARBOX_STORE_DATABASE_URL is not a setting"}},
		"suite, range":         {"suite", []string{"PILLARBOX_AUDIT_BATCH=1001"}, []string{"run"}, []string{"PILLARBOX_AUDIT_BATCH must be 1 to 1000"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			line := run(t, c.program, c.env, c.args...).refused(t)
			for _, want := range c.want {
				require.Contains(t, line, want)
			}
			require.True(t, strings.HasPrefix(line, c.program+": "), line)
		})
	}
}

// TestAMistakeIsNoFinding: commands that end with 1 when they found something end with 2 when they could not look.
func TestAMistakeIsNoFinding(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"doctor", "--service=none"}, {"doctor", "--data=none"}, {"drill", "--rate=0"}, {"drill", "--bogus"},
		{"reconcile", "--since=yesterday"}, {"reconcile", "--data=none"},
	} {
		r := run(t, "suite", nil, args...)
		require.Equal(t, 2, r.status, "%v: %s", args, r.stderr)
		require.Equal(t, 1, strings.Count(r.stderr, "\n"), "not one line: %q", r.stderr)
	}
	run(t, "suite", nil, "queue", "ls", "--bogus").refused(t)
}

func TestPasswordsStayOutOfMessages(t *testing.T) {
	t.Parallel()
	for _, env := range [][]string{
		{"PILLARBOX_DATABASE_URL=postgres://store:hun%ter2@127.0.0.1:1/x"},
		{"PILLARBOX_DATABASE_URL=postgres://x", "PILLARBOX_NATS_URL=nats://store:hun%ter2@127.0.0.1:1"},
		{"PILLARBOX_DATABASE_URL=mysql://store:hun%ter2@127.0.0.1:1/x"},
	} {
		env = append(env, "PILLARBOX_STORE_ADMIN=127.0.0.1:0", "PILLARBOX_STORE_HTTP=127.0.0.1:0")
		require.NotContains(t, run(t, "store", env).refused(t), "ter2")
	}
}

func TestHealth(t *testing.T) {
	t.Parallel()
	var ready atomic.Bool
	ready.Store(true)
	admin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path != "/ready":
			w.WriteHeader(http.StatusNotFound)
		case !ready.Load():
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = w.Write([]byte("the broker is away\n"))
		}
	}))
	defer admin.Close()
	_, port, err := net.SplitHostPort(admin.Listener.Addr().String())
	require.NoError(t, err)
	for _, address := range []string{"127.0.0.1:" + port, "0.0.0.0:" + port, ":" + port} {
		require.Equal(t, ran{}, run(t, "mailer", []string{"PILLARBOX_MAILER_ADMIN=" + address}, "health"), address)
	}
	ready.Store(false)
	require.Contains(t, run(t, "store", nil, "health", "--admin", "127.0.0.1:"+port).refused(t), "the broker is away")
	admin.Close()
	run(t, "store", nil, "health", "--admin", "127.0.0.1:"+port).refused(t)
	run(t, "store", nil, "health", "--admin", "nonsense").refused(t)
}
