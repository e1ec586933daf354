package consumer_test

import (
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/shared/consumer"
)

func TestSettingsOfAServiceHaveItsPrefix(t *testing.T) {
	t.Parallel()
	var c struct {
		consumer.Settings `embed:"" envprefix:"PILLARBOX_SOMESERVICE_"`
	}
	parser, err := kong.New(&c)
	require.NoError(t, err)
	_, err = parser.Parse([]string{"--batch=7"})
	require.NoError(t, err)
	want := consumer.Settings{Batch: 7}.WithDefaults()
	require.Equal(t, want, c.Settings, "the defaults of the flags are the defaults")
	for _, flag := range parser.Model.Flags {
		if flag.Name != "help" {
			require.Len(t, flag.Envs, 1)
			require.Contains(t, flag.Envs[0], "PILLARBOX_SOMESERVICE_")
		}
	}
	require.Equal(t, 14, c.Subscriber("x").MaxInFlight, "a full group for each worker")
	require.True(t, c.Consumer("x", true).Ordered)
	c.Mode = consumer.ModeSingle
	require.Equal(t, 7, c.Subscriber("x").MaxInFlight, "one group at a time")
}

func TestSettingsListEveryProblem(t *testing.T) {
	t.Parallel()
	require.NoError(t, consumer.Settings{}.Validate("P_"), "the zero value works")
	bad := consumer.Settings{Batch: 1001, Workers: 17, Policy: consumer.Policy{Attempts: -1, Backoff: time.Hour + 1, MaxBackoff: time.Microsecond, Drain: time.Hour, ReadyAge: 1, EventsFrom: "yesterday", KeepLetters: time.Hour, KeepActions: 1, Mode: "solo", Lease: time.Hour}}
	err := bad.Validate("P_")
	for _, name := range []string{"BATCH", "WORKERS", "ATTEMPTS", "BACKOFF", "MAX_BACKOFF", "DRAIN", "READY_AGE", "EVENTS_FROM", "KEEP_LETTERS", "KEEP_ACTIONS", "MODE", "LEASE"} {
		require.ErrorContains(t, err, "P_"+name+" must be")
	}
	require.ErrorContains(t, consumer.Settings{Delivery: consumer.AtMostOnce, Policy: consumer.Policy{EventsFrom: "now"}}.Validate("P_"), "P_EVENTS_FROM must be empty")
	for _, from := range []consumer.From{"start", "now", "2026-01-31T00:00:00Z", "2026-01-31T01:00:00.5+01:00"} {
		require.NoError(t, consumer.Settings{Policy: consumer.Policy{EventsFrom: from}}.Validate("P_"))
	}
	require.ErrorContains(t, consumer.Settings{Policy: consumer.Policy{Backoff: 2 * time.Minute, MaxBackoff: time.Minute}}.Validate("P_"), "at least")
}
