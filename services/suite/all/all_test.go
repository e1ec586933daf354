package all_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/suite/all"
)

// TestDedupOutlivesReplayOrNothingStarts: what the store can publish again must be recognised.
func TestDedupOutlivesReplayOrNothingStarts(t *testing.T) {
	t.Parallel()
	require.NoError(t, all.Settings{}.Validate())
	var s all.Settings
	s.Store.Horizon = 719 * time.Hour
	err := s.Validate()
	require.ErrorContains(t, err, "PILLARBOX_MAILER_KEEP")
	require.ErrorContains(t, err, "PILLARBOX_LOYALTY_KEEP")
	require.ErrorContains(t, err, "at least PILLARBOX_STORE_HORIZON (719h0m0s) and 2h0m0s more")
	s.Mailer.Keep, s.Loyalty.Keep = 721*time.Hour, 721*time.Hour
	require.NoError(t, s.Validate())
	s.Loyalty.Keep = 720 * time.Hour
	err = s.Validate()
	require.ErrorContains(t, err, "PILLARBOX_LOYALTY_KEEP")
	require.NotContains(t, err.Error(), "PILLARBOX_MAILER_KEEP")
}
