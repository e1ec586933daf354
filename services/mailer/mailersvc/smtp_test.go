package mailersvc_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/mailer/mailersvc"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
	"github.com/pillarbox/pillarbox/shared/events"
	"github.com/pillarbox/pillarbox/shared/smtptest"
)

func mailServer(t *testing.T) *smtptest.Server {
	t.Helper()
	server, err := smtptest.Start(smtptest.Config{})
	require.NoError(t, err)
	t.Cleanup(server.Close)
	return server
}

func requested(t *testing.T, id string) []byte {
	t.Helper()
	e, err := events.NewMailRequested(id, "/shop/news", time.Now(), events.MailRequest{
		Sender:     events.Mailbox{Email: "news@example.com", Name: "News"},
		Recipients: []events.Mailbox{{Email: "ada@example.com"}, {Email: "bob@example.org"}}, Subject: "Hello " + id, Text: "Hello\n", HTML: "<p>Hello</p>",
	})
	require.NoError(t, err)
	raw, err := e.Encode()
	require.NoError(t, err)
	return raw
}

// sent returns the events of the mails that the server took, in order.
func sent(server *smtptest.Server) (ids []string) {
	for _, m := range server.Taken() {
		_, rest, _ := strings.Cut(string(m.Data), "\nX-Pillarbox-Event: ")
		id, _, _ := strings.Cut(rest, "\n")
		ids = append(ids, id)
	}
	return ids
}

func TestMailsGoToAMailServerOnceAndInOrder(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "mailer", func(t *testing.T, db *database.DB) {
		const orders, versions = 10, 5
		b, server := setup(t, db), mailServer(t)
		config := mailersvc.Config{Sending: mailersvc.Sending{Transport: server.URL("", "timeout=5s")}, Batch: 20}
		s, _ := b.startAs(t, config)
		b.startAs(t, config)
		b.ready(t, s)
		var bodies [][]byte
		for v := range versions {
			for o := range orders {
				bodies = append(bodies, event(t, fmt.Sprintf("o%d", o), int64(v+1), nil))
			}
		}
		bodies = append(bodies, requested(t, "mail-1"), requested(t, "mail-2"))
		b.publish(t, append(bodies, bodies[:20]...)...) // some come twice
		want := orders*versions + 2
		require.Eventually(t, func() bool { return b.count(t, "deliveries WHERE state = 'accepted'") == want }, patience, 5*time.Millisecond)
		b.publish(t, bodies[len(bodies)-1], event(t, "last", 1, nil)) // a request again, and something to wait for
		require.Eventually(t, func() bool { return b.count(t, "deliveries WHERE state = 'accepted'") == want+1 }, patience, 5*time.Millisecond)
		ids := sent(server)
		require.Len(t, ids, want+1)
		seen, next := map[string]bool{}, map[string]int{}
		for _, id := range ids {
			require.False(t, seen[id], id)
			seen[id] = true
			if order, version, ok := strings.Cut(id, "-"); ok && order != "mail" {
				next[order]++
				require.Equal(t, fmt.Sprint(next[order]), version, "order %s", order)
			}
		}
		require.Zero(t, b.count(t, "dead_letters"))
		require.Zero(t, b.count(t, "parked"))
		require.Empty(t, b.files(t))
	})
}

func TestARequestedMailIsOneFileInThePickupFolder(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "mailer", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		b.start(t)
		b.publish(t, requested(t, "mail-1"), requested(t, "mail-1"), event(t, "o", 1, nil), requested(t, "mail-2"))
		b.waitFor(t, 3)
		b.settled(t)
		require.Len(t, b.files(t), 3)
		require.Zero(t, b.count(t, "dead_letters"))
	})
}

func TestAMailServerThatIsDownIsAnOutage(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "mailer", func(t *testing.T, db *database.DB) {
		b, server := setup(t, db), mailServer(t)
		var down atomic.Bool
		down.Store(true)
		server.SetScript(func(s smtptest.Step) smtptest.Answer {
			if down.Load() && s.Phase == "greeting" {
				return smtptest.Answer{Reply: "421 busy", Close: true}
			}
			return smtptest.Answer{}
		})
		s, _ := b.startAs(t, mailersvc.Config{Sending: mailersvc.Sending{Transport: server.URL("", "timeout=5s")}})
		b.publish(t, event(t, "o", 1, nil), event(t, "o", 2, nil))
		require.Eventually(t, func() bool {
			err := s.Ready(t.Context())
			return err != nil && strings.Contains(err.Error(), "greeting: 421")
		}, patience, 5*time.Millisecond)
		down.Store(false)
		require.Eventually(t, func() bool { return len(sent(server)) == 2 }, patience, 5*time.Millisecond)
		require.Equal(t, []string{"o-1", "o-2"}, sent(server))
		b.ready(t, s)
		require.Zero(t, b.count(t, "deliveries WHERE attempts > 1"))
		require.Zero(t, b.count(t, "parked"))
	})
}

// TestARefusedMailIsRedriven: the generic redrive of a dead letter sends it again.
func TestARefusedMailIsRedriven(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "mailer", func(t *testing.T, db *database.DB) {
		b, server := setup(t, db), mailServer(t)
		var refusing atomic.Bool
		refusing.Store(true)
		server.SetScript(func(s smtptest.Step) smtptest.Answer {
			if refusing.Load() && s.Phase == "rcpt" {
				return smtptest.Answer{Reply: "550 nobody here"}
			}
			return smtptest.Answer{}
		})
		b.startAs(t, mailersvc.Config{Sending: mailersvc.Sending{Transport: server.URL("", "timeout=5s")}})
		b.publish(t, event(t, "o", 1, nil), event(t, "o", 2, nil))
		require.Eventually(t, func() bool { return b.count(t, "dead_letters") == 2 }, patience, 5*time.Millisecond)
		refusing.Store(false)
		b.publish(t, event(t, "o", 1, nil)) // what a redrive comes to: the event is handled again
		require.Eventually(t, func() bool { return b.count(t, "dead_letters") == 1 && len(sent(server)) == 1 }, patience, 5*time.Millisecond)
		require.Equal(t, []string{"o-1"}, sent(server))
	})
}

func TestSendingSettings(t *testing.T) {
	t.Parallel()
	for transport, want := range map[string]string{
		"carrier-pigeon": "TRANSPORT", "smtp://user:secret@host:25": "TRANSPORT", "smtp://user@host:587": "SMTP_PASSWORD",
	} {
		err := mailersvc.Config{Sending: mailersvc.Sending{Transport: transport}}.Validate()
		require.ErrorContains(t, err, "PILLARBOX_MAILER_"+want+" must be")
		require.NotContains(t, err.Error(), "secret")
	}
	require.NoError(t, mailersvc.Config{Sending: mailersvc.Sending{Transport: "smtp://user@host:587", SMTPPassword: "x"}}.Validate())
	require.ErrorContains(t, mailersvc.Config{Sending: mailersvc.Sending{SMTPPassword: "x"}}.Validate(), "SMTP_PASSWORD")
	require.ErrorContains(t, mailersvc.Config{Sending: mailersvc.Sending{GiveUp: time.Second}}.Validate(), "GIVE_UP")
	require.Equal(t, []string{"PILLARBOX_MAILER_SMTP_PASSWORD"}, mailersvc.Secrets())
}
