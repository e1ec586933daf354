package storesvc_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/store/storesvc"
)

func TestDefaultsOfTheFlagsAreTheDefaults(t *testing.T) {
	t.Parallel()
	for _, entry := range os.Environ() {
		if strings.HasPrefix(entry, "PILLARBOX_STORE_") {
			t.Skip("the environment has settings of its own")
		}
	}
	var c storesvc.Config
	parser, err := kong.New(&c)
	require.NoError(t, err)
	_, err = parser.Parse(nil)
	require.NoError(t, err)
	require.Equal(t, storesvc.Default(), c)
	require.NoError(t, c.Validate())
	require.NoError(t, storesvc.Config{}.Validate(), "the zero value works")
}

func TestValidateListsEveryProblem(t *testing.T) {
	t.Parallel()
	err := storesvc.Config{
		Intake: "x", IntakeFlushEvery: time.Minute, IntakeFlushCount: 10_001, BatchBody: 1,
		Fanout: "x", FanoutRoute: "X", IntakeQueue: -1, IntakeGroup: 501, IntakeCommitters: 17, IntakeWait: time.Hour, BodyBudget: 1, OutboxLimit: -1,
		OutboxMaxAge: 1, KeyRetention: time.Hour, StreamMaxBytes: 1, StreamReplicas: 2, Horizon: 1, RelayLease: 1,
		RelayPoll: 1, Drain: 1,
	}.Validate()
	for _, name := range []string{
		"INTAKE", "INTAKE_FLUSH_EVERY", "INTAKE_FLUSH_COUNT", "BATCH_BODY", "INTAKE_QUEUE", "INTAKE_GROUP", "INTAKE_COMMITTERS", "INTAKE_WAIT", "BODY_BUDGET", "OUTBOX_LIMIT", "OUTBOX_MAX_AGE",
		"KEY_RETENTION", "STREAM_MAX_BYTES", "STREAM_REPLICAS", "HORIZON", "RELAY_LEASE", "RELAY_POLL", "DRAIN",
	} {
		require.ErrorContains(t, err, "PILLARBOX_STORE_"+name+" must be")
	}
}

func TestFanoutIsChecked(t *testing.T) {
	t.Parallel()
	for _, c := range []storesvc.Config{
		{Fanout: "sequential"}, {Fanout: "parallel", FanoutRoute: "one"}, {Fanout: "sequential", FanoutRoute: "shop,crm-2,x_1"},
	} {
		require.NoError(t, c.Validate())
	}
	for setting, c := range map[string]storesvc.Config{
		"PILLARBOX_FANOUT must be parallel or sequential":                                      {Fanout: "both"},
		"PILLARBOX_FANOUT_ROUTE must be names":                                                 {FanoutRoute: "a,,b"},
		"PILLARBOX_FANOUT_ROUTE must be names separated by commas: no route: a is there twice": {FanoutRoute: "a,a"},
		"PILLARBOX_FANOUT_ROUTE must be 1 to 16 names":                                         {FanoutRoute: "a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q"},
		"PILLARBOX_STORE_STREAM_MAX_BYTES must be at least 12582912":                           {Fanout: "sequential", StreamMaxBytes: 12<<20 - 1},
	} {
		require.ErrorContains(t, c.Validate(), setting)
	}
}
