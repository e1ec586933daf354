package boot_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/internal/boot"
)

func TestCheckEnv(t *testing.T) {
	t.Parallel()
	known := []string{
		"PILLARBOX_STORE_DRAIN", "PILLARBOX_STORE_INTAKE_QUEUE", "PILLARBOX_STORE_DATABASE_URL", "PILLARBOX_DATABASE_URL", "PILLARBOX_LOG_LEVEL",
	}
	secrets := []string{"PILLARBOX_STORE_DATABASE_URL", "PILLARBOX_DATABASE_URL"}
	for name, c := range map[string]struct {
		environ []string
		want    string
	}{
		"known":                      {[]string{"PILLARBOX_STORE_DRAIN=1s", "PILLARBOX_LOG_LEVEL=info"}, ""},
		"secret as a file":           {[]string{"PILLARBOX_STORE_DATABASE_URL_FILE=/x", "PILLARBOX_DATABASE_URL_FILE=/x"}, ""},
		"others' names":              {[]string{"HOME=/", "STORE_DRAN=1", "PILLARBOX_TEST_POSTGRES_URL=x", "PILLARBOX_MAILER_DRAN=1s"}, ""},
		"no secret":                  {[]string{"PILLARBOX_STORE_DRAIN_FILE=/x"}, "did you mean PILLARBOX_STORE_DRAIN?"},
		"slip":                       {[]string{"PILLARBOX_STORE_DRIAN=1s"}, "PILLARBOX_STORE_DRIAN is not a setting, did you mean PILLARBOX_STORE_DRAIN?"},
		"the nearest of several":     {[]string{"PILLARBOX_STORE_INTAKE_QUEU=1"}, "did you mean PILLARBOX_STORE_INTAKE_QUEUE?"},
		"nothing near":               {[]string{"PILLARBOX_STORE_COLOUR_OF_THE_WALLS=red"}, "PILLARBOX_STORE_COLOUR_OF_THE_WALLS is not a setting"},
		"slip in a shared name":      {[]string{"PILLARBOX_DATBASE_URL=x"}, "did you mean PILLARBOX_DATABASE_URL?"},
		"slip in a shared file name": {[]string{"PILLARBOX_DATBASE_URL_FILE=x"}, "did you mean PILLARBOX_DATABASE_URL_FILE?"},
		"two at once, sorted": {
			[]string{"PILLARBOX_STORE_DRIAN=", "PILLARBOX_LOG_LEVL=debug"},
			"environment: PILLARBOX_LOG_LEVL is not a setting, did you mean PILLARBOX_LOG_LEVEL?; PILLARBOX_STORE_DRIAN is",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := boot.CheckEnv(c.environ, []string{"store"}, known, secrets)
			if c.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, c.want)
			if !strings.Contains(c.want, "mean") {
				require.NotContains(t, err.Error(), "did you mean")
			}
		})
	}
}

// unset makes sure that name is not in the environment, also after the test.
func unset(t *testing.T, name string) {
	t.Helper()
	t.Setenv(name, "") // remembers what was there
	require.NoError(t, os.Unsetenv(name))
}

const secret = "PILLARBOX_TEST_SECRET"

// These tests change the process's environment, so they cannot run at once.
func TestSecretFile(t *testing.T) {
	for name, c := range map[string]struct{ content, want string }{
		"plain":               {"s3cret", "s3cret"},
		"line end":            {"s3cret\n", "s3cret"},
		"line end of Windows": {"s3cret\r\n", "s3cret"},
		"blanks are its own":  {" s3 cret \n", " s3 cret "},
		"empty":               {"", ""},
		"as large as allowed": {strings.Repeat("x", 64<<10), strings.Repeat("x", 64<<10)},
	} {
		t.Run(name, func(t *testing.T) {
			unset(t, secret)
			path := filepath.Join(t.TempDir(), "secret")
			require.NoError(t, os.WriteFile(path, []byte(c.content), 0o600))
			t.Setenv(secret+"_FILE", path)
			require.NoError(t, boot.ReadSecretFiles("PILLARBOX_TEST_OTHER", secret))
			got, ok := os.LookupEnv(secret)
			require.True(t, ok)
			require.Equal(t, c.want, got)
		})
	}
}

func TestSecretFileThatCannotBeUsed(t *testing.T) {
	dir := t.TempDir()
	large := filepath.Join(dir, "large")
	require.NoError(t, os.WriteFile(large, []byte(strings.Repeat("x", 64<<10+1)), 0o600))
	for name, c := range map[string]struct{ path, want string }{
		"missing":   {filepath.Join(dir, "none"), "no such file"},
		"too large": {large, "larger than 65536 bytes"},
		"a folder":  {dir, "is a directory"},
		"endless":   {"/dev/zero", "larger than 65536 bytes"},
		"no name":   {"", "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			unset(t, secret)
			t.Setenv(secret+"_FILE", c.path)
			err := boot.ReadSecretFiles(secret)
			require.ErrorContains(t, err, c.want)
			require.ErrorContains(t, err, secret+"_FILE")
			_, ok := os.LookupEnv(secret)
			require.False(t, ok)
		})
	}
	t.Run("both set", func(t *testing.T) {
		t.Setenv(secret, "")
		t.Setenv(secret+"_FILE", large)
		require.EqualError(t, boot.ReadSecretFiles(secret), secret+" and "+secret+"_FILE are both set")
	})
}
