package mailersvc_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/mailer/mailersvc"
	"github.com/pillarbox/pillarbox/shared/consumer"
)

func parse(t *testing.T, args ...string) (mailersvc.Config, error) {
	t.Helper()
	for _, entry := range os.Environ() {
		if strings.HasPrefix(entry, "PILLARBOX_MAILER_") {
			t.Skip("the environment has settings of its own")
		}
	}
	var c mailersvc.Config
	parser, err := kong.New(&c)
	require.NoError(t, err)
	_, err = parser.Parse(args)
	return c, err
}

func TestDefaultsOfTheFlagsAreTheDefaults(t *testing.T) {
	t.Parallel()
	c, err := parse(t)
	require.NoError(t, err)
	require.Empty(t, c.Pickup, "left open for the suite")
	c.Pickup = mailersvc.Default().Pickup
	require.Equal(t, mailersvc.Default(), c)
	require.NoError(t, c.Validate())
	require.NoError(t, mailersvc.Config{}.Validate(), "the zero value works")
}

func TestFileModeIsOctal(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]mailersvc.FileMode{"0644": 0o644, "640": 0o640, "0600": 0o600} {
		c, err := parse(t, "--file-mode="+text)
		require.NoError(t, err)
		require.Equal(t, want, c.FileMode)
		require.NoError(t, c.Validate())
		shown, err := c.FileMode.MarshalText()
		require.NoError(t, err)
		require.Equal(t, "0"+strings.TrimPrefix(text, "0"), string(shown))
	}
	for _, text := range []string{"", "rw-r-----", "0x1a4", "0888", "-1"} {
		_, err := parse(t, "--file-mode="+text)
		require.Error(t, err, text)
	}
}

func TestValidateListsEveryProblem(t *testing.T) {
	t.Parallel()
	err := mailersvc.Config{
		From: "nobody", Domain: "a b", FileMode: 0o755, Batch: 1001, Dispatch: "lottery", Workers: 257, Transactions: 17,
		Delivery: "twice", Rate: -1, Sweep: time.Hour, Keep: time.Hour,
		Policy: consumer.Policy{
			Mode: "solo", Lease: 1, Attempts: -1, Backoff: 2 * time.Hour, MaxBackoff: time.Microsecond, Drain: time.Hour,
			KeepLetters: 1, KeepActions: 1, ReadyAge: 1,
		},
	}.Validate()
	for _, name := range []string{
		"FROM", "DOMAIN", "FILE_MODE", "BATCH", "DISPATCH", "WORKERS", "TRANSACTIONS", "MODE", "LEASE", "DELIVERY", "RATE", "ATTEMPTS", "BACKOFF", "MAX_BACKOFF", "SWEEP", "KEEP", "KEEP_LETTERS", "KEEP_ACTIONS", "READY_AGE", "DRAIN",
	} {
		require.ErrorContains(t, err, "PILLARBOX_MAILER_"+name+" must be")
	}
	require.ErrorContains(t, mailersvc.Config{Rate: 100, Burst: 19}.Validate(), "PILLARBOX_MAILER_BURST must be")
	require.NoError(t, mailersvc.Config{Rate: 100, Burst: 20}.Validate())
	require.Error(t, mailersvc.Config{FileMode: 0o440}.Validate(), "the mailer itself must be able to write")
}
