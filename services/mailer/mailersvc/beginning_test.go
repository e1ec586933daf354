package mailersvc_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/mailer/mailersvc"
	"github.com/pillarbox/pillarbox/shared/consumer"
)

func TestEventsFromIsChecked(t *testing.T) {
	t.Parallel()
	require.ErrorContains(t, mailersvc.Config{Policy: consumer.Policy{EventsFrom: "yesterday"}}.Validate(), "PILLARBOX_MAILER_EVENTS_FROM must be")
	require.ErrorContains(t, mailersvc.Config{Delivery: "at-most-once", Policy: consumer.Policy{EventsFrom: "now"}}.Validate(), "EVENTS_FROM must be empty")
	require.NoError(t, mailersvc.Config{Policy: consumer.Policy{EventsFrom: "2026-01-31T00:00:00Z"}}.Validate())
}
