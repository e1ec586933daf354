package auditsvc_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/audit/auditsvc"
)

func TestDefaultsOfTheFlagsAreTheDefaults(t *testing.T) {
	t.Parallel()
	for _, entry := range os.Environ() {
		if strings.HasPrefix(entry, "PILLARBOX_AUDIT_") {
			t.Skip("the environment has settings of its own")
		}
	}
	var c auditsvc.Config
	parser, err := kong.New(&c)
	require.NoError(t, err)
	_, err = parser.Parse(nil)
	require.NoError(t, err)
	require.Equal(t, auditsvc.Default(), c)
	require.NoError(t, c.Validate())
	require.NoError(t, auditsvc.Config{}.Validate(), "the zero value works")
}

func TestValidateListsEveryProblem(t *testing.T) {
	t.Parallel()
	err := auditsvc.Config{Batch: 1001, Workers: 17, Attempts: -1, Backoff: time.Hour + 1, MaxBackoff: time.Microsecond, Drain: time.Hour}.Validate()
	for _, name := range []string{"BATCH", "WORKERS", "ATTEMPTS", "BACKOFF", "MAX_BACKOFF", "DRAIN"} {
		require.ErrorContains(t, err, "PILLARBOX_AUDIT_"+name+" must be")
	}
	require.ErrorContains(t, auditsvc.Config{Backoff: 2 * time.Minute, MaxBackoff: time.Minute}.Validate(), "at least")
}
