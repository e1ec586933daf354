package mailersvc_test

import (
	"bytes"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/mailer/mailersvc"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
	"github.com/pillarbox/pillarbox/shared/smtptest"
)

// TestAPersonSettlesAnUnknownMail lists it and sends it again, as the commands do.
func TestAPersonSettlesAnUnknownMail(t *testing.T) {
	t.Parallel()
	databasetest.EachURL(t, "mailer", func(t *testing.T, db *database.DB, url string) {
		b, server := setup(t, db), mailServer(t)
		server.SetScript(func(s smtptest.Step) smtptest.Answer {
			if s.Phase == "end" {
				return smtptest.Answer{Close: true}
			}
			return smtptest.Answer{}
		})
		b.startAs(t, mailersvc.Config{Sending: mailersvc.Sending{Transport: server.URL("", "timeout=5s")}})
		b.publish(t, event(t, "o", 1, nil))
		require.Eventually(t, func() bool { return b.count(t, "deliveries WHERE state = 'unknown'") == 1 }, patience, 5*time.Millisecond)

		var out bytes.Buffer
		flags := mailersvc.Ledger{DatabaseURL: url}
		require.NoError(t, (&mailersvc.DeliveriesCommand{Ledger: flags, State: "unknown", Out: &out}).Run())
		require.Contains(t, out.String(), "ada@example.com unknown (no answer to the mail")
		out.Reset()
		require.NoError(t, (&mailersvc.DeliveriesCommand{Ledger: flags, State: "unknown", JSON: true, Out: &out}).Run())
		var shown struct {
			ID, State string
			Event     string `json:"event_id"`
		}
		require.NoError(t, json.Unmarshal(out.Bytes(), &shown))
		require.Equal(t, "o-1", shown.Event)

		server.SetScript(nil)
		out.Reset()
		require.NoError(t, (&mailersvc.ResendCommand{Ledger: flags, ID: shown.ID, Reason: "she has none", Out: &out}).Run())
		require.Contains(t, out.String(), shown.ID)
		require.Eventually(t, func() bool { return b.count(t, "deliveries WHERE state = 'accepted'") == 1 }, patience, 5*time.Millisecond)
		require.Equal(t, []string{"o-1"}, sent(server))
		require.Equal(t, 1, b.count(t, "operator_actions WHERE action = 'resend' AND reason = 'she has none'"))
		require.Error(t, (&mailersvc.ResendCommand{Ledger: flags, ID: shown.ID, Reason: "again", Out: &out}).Run())
	})
	require.ErrorContains(t, (&mailersvc.DeliveriesCommand{}).Run(), "PILLARBOX_MAILER_DATABASE_URL")
	require.Error(t, (&mailersvc.DeliveriesCommand{Ledger: mailersvc.Ledger{DatabaseURL: "sqlite:" + t.TempDir() + "/none.db"}}).Run())
}
