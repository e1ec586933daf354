package mailersvc_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/mailer/mailersvc"
)

func TestEventsFromIsChecked(t *testing.T) {
	t.Parallel()
	require.ErrorContains(t, mailersvc.Config{EventsFrom: "yesterday"}.Validate(), "PILLARBOX_MAILER_EVENTS_FROM must be")
	require.ErrorContains(t, mailersvc.Config{EventsFrom: "now", Delivery: "at-most-once"}.Validate(), "EVENTS_FROM must be empty")
	require.NoError(t, mailersvc.Config{EventsFrom: "2026-01-31T00:00:00Z"}.Validate())
}
