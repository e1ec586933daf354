package smtp_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/pillarbox/pillarbox/services/mailer/internal/smtp"
	"github.com/pillarbox/pillarbox/shared/smtptest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const message = "Subject: hi\r\n\r\nHello\r\n.\r\n..x\r\nend\r\n"

var mail = smtp.Mail{Sender: "shop@example.com", Recipients: []string{"ada@example.com", "bob@example.com"}, Data: []byte(message)}

func start(t *testing.T, c smtptest.Config) *smtptest.Server {
	t.Helper()
	s, err := smtptest.Start(c)
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

func config(t *testing.T, url string) smtp.Config {
	t.Helper()
	server, err := smtp.ParseServer(url)
	require.NoError(t, err)
	return smtp.Config{Server: server, Name: "client.example"}
}

func dial(t *testing.T, c smtp.Config) *smtp.Session {
	t.Helper()
	s, err := smtp.Dial(t.Context(), c)
	require.NoError(t, err)
	t.Cleanup(s.Cut)
	return s
}

func send(t *testing.T, s *smtp.Session, m smtp.Mail, own bool) smtp.Result {
	t.Helper()
	return s.Send(t.Context(), m, own, time.Now().Add(time.Minute), smtp.Hooks{})
}

func states(r smtp.Result) (all []smtp.State) {
	for _, v := range r.Recipients {
		all = append(all, v.State)
	}
	return all
}

func TestMailsOfOneConnection(t *testing.T) {
	t.Parallel()
	server := start(t, smtptest.Config{Extensions: []string{"SIZE 100000", "8BITMIME"}})
	s := dial(t, config(t, server.URL("", "")))
	for range 3 {
		r := send(t, s, mail, true)
		require.NoError(t, r.Err)
		require.Equal(t, []smtp.State{smtp.Accepted, smtp.Accepted}, states(r))
		require.Contains(t, r.Recipients[0].Reply, "250 taken as")
		require.True(t, r.Usable)
		require.NoError(t, s.Reset(t.Context()))
	}
	s.Quit()
	require.Equal(t, 3, s.Mails())
	taken := server.Taken()
	require.Len(t, taken, 3)
	require.Equal(t, 1, server.Connections())
	require.Equal(t, strings.ReplaceAll(message, "\r\n", "\n"), string(taken[0].Data), "dots arrive as they were")
	require.Equal(t, mail.Recipients, taken[0].Recipients)
	steps := server.Steps()
	require.Equal(t, "client.example", steps[1].Argument)
	require.Equal(t, "quit", steps[len(steps)-1].Phase)
}

// TestEveryPhase fails each step in each way: before the final dot a mail is certainly not taken, after it
// only an answer tells, and the server's words decide who is to blame.
func TestEveryPhase(t *testing.T) {
	t.Parallel()
	const d, a, x, u = smtp.Deferred, smtp.Accepted, smtp.Refused, smtp.Unknown
	for name, c := range map[string]struct {
		phase  string
		answer smtptest.Answer
		own    bool
		want   []smtp.State
		blame  smtp.Blame
		usable bool
	}{
		"mail 4xx":            {"mail", smtptest.Answer{Reply: "451 later"}, false, []smtp.State{d, d}, smtp.OfMail, true},
		"mail 5xx":            {"mail", smtptest.Answer{Reply: "550 no"}, false, []smtp.State{x, x}, smtp.OfMail, true},
		"mail 4xx, own":       {"mail", smtptest.Answer{Reply: "452 disk"}, true, []smtp.State{d, d}, smtp.OfServer, true},
		"mail 5xx, own":       {"mail", smtptest.Answer{Reply: "550 no"}, true, []smtp.State{x, x}, smtp.OfServer, true},
		"mail too large, own": {"mail", smtptest.Answer{Reply: "552 too large"}, true, []smtp.State{x, x}, smtp.OfMail, true},
		"mail 421":            {"mail", smtptest.Answer{Reply: "421 bye", Close: true}, false, []smtp.State{d, d}, smtp.OfServer, false},
		"mail 530":            {"mail", smtptest.Answer{Reply: "530 who?"}, false, []smtp.State{d, d}, smtp.OfServer, false},
		"mail closed":         {"mail", smtptest.Answer{Close: true}, false, []smtp.State{d, d}, smtp.OfConnection, false},
		"mail silent":         {"mail", smtptest.Answer{Silent: true}, false, []smtp.State{d, d}, smtp.OfConnection, false},
		"mail nonsense":       {"mail", smtptest.Answer{Reply: "hello?"}, false, []smtp.State{d, d}, smtp.OfConnection, false},
		"rcpt 4xx":            {"rcpt", smtptest.Answer{Reply: "450 grey"}, true, []smtp.State{d, d}, smtp.OfMail, true},
		"rcpt 5xx":            {"rcpt", smtptest.Answer{Reply: "550 nobody"}, true, []smtp.State{x, x}, smtp.OfMail, true},
		"rcpt 421":            {"rcpt", smtptest.Answer{Reply: "421 bye", Close: true}, true, []smtp.State{d, d}, smtp.OfConnection, false},
		"rcpt 530":            {"rcpt", smtptest.Answer{Reply: "530 who?"}, true, []smtp.State{d, d}, smtp.OfServer, false},
		"rcpt closed":         {"rcpt", smtptest.Answer{Close: true}, true, []smtp.State{d, d}, smtp.OfConnection, false},
		"rcpt silent":         {"rcpt", smtptest.Answer{Silent: true}, true, []smtp.State{d, d}, smtp.OfConnection, false},
		"data 4xx":            {"data", smtptest.Answer{Reply: "451 later"}, true, []smtp.State{d, d}, smtp.OfMail, true},
		"data 5xx":            {"data", smtptest.Answer{Reply: "554 no"}, true, []smtp.State{x, x}, smtp.OfMail, true},
		"data closed":         {"data", smtptest.Answer{Close: true}, true, []smtp.State{d, d}, smtp.OfConnection, false},
		"data silent":         {"data", smtptest.Answer{Silent: true}, true, []smtp.State{d, d}, smtp.OfConnection, false},
		"end 4xx":             {"end", smtptest.Answer{Reply: "451 later"}, true, []smtp.State{d, d}, smtp.OfMail, true},
		"end 5xx":             {"end", smtptest.Answer{Reply: "554 spam"}, true, []smtp.State{x, x}, smtp.OfMail, true},
		"end 421":             {"end", smtptest.Answer{Reply: "421 bye", Close: true}, true, []smtp.State{d, d}, smtp.OfConnection, false},
		"end 251":             {"end", smtptest.Answer{Reply: "251 forwarded", Take: true}, true, []smtp.State{a, a}, smtp.OfMail, true},
		"end closed, taken":   {"end", smtptest.Answer{Close: true, Take: true}, true, []smtp.State{u, u}, smtp.OfMail, false},
		"end closed":          {"end", smtptest.Answer{Close: true}, true, []smtp.State{u, u}, smtp.OfMail, false},
		"end silent":          {"end", smtptest.Answer{Silent: true, Take: true}, true, []smtp.State{u, u}, smtp.OfMail, false},
		"end nonsense":        {"end", smtptest.Answer{Reply: "what?"}, true, []smtp.State{u, u}, smtp.OfMail, false},
		"end 354":             {"end", smtptest.Answer{Reply: "354 more"}, true, []smtp.State{u, u}, smtp.OfMail, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := start(t, smtptest.Config{Script: func(s smtptest.Step) smtptest.Answer {
				if s.Phase == c.phase {
					return c.answer
				}
				return smtptest.Answer{}
			}})
			r := send(t, dial(t, config(t, server.URL("", "timeout=200ms"))), mail, c.own)
			require.Equal(t, c.want, states(r))
			require.Equal(t, c.blame, r.Blame)
			require.Equal(t, c.usable, r.Usable)
			require.Equal(t, c.phase, r.Phase)
			if c.want[0] != smtp.Unknown {
				require.Equal(t, c.want[0] == smtp.Accepted, len(server.Taken()) == 1)
			}
		})
	}
}

func TestAConnectionThatBreaksWithinTheMailIsNotUnknown(t *testing.T) {
	t.Parallel()
	server := start(t, smtptest.Config{Script: func(s smtptest.Step) smtptest.Answer {
		return smtptest.Answer{Close: s.Phase == "body"}
	}})
	large := mail
	large.Data = []byte("Subject: x\r\n\r\n" + strings.Repeat(strings.Repeat("x", 70)+"\r\n", 200_000)) // more than the sockets hold
	r := send(t, dial(t, config(t, server.URL("", "timeout=2s"))), large, true)
	require.Equal(t, []smtp.State{smtp.Deferred, smtp.Deferred}, states(r))
	require.Equal(t, smtp.OfConnection, r.Blame)
	require.Equal(t, "body", r.Phase)
}

func TestEachRecipientHasItsOwnVerdict(t *testing.T) {
	t.Parallel()
	server := start(t, smtptest.Config{Script: func(s smtptest.Step) smtptest.Answer {
		switch {
		case s.Phase == "rcpt" && s.Argument == "nobody@example.com":
			return smtptest.Answer{Reply: "550 5.1.1 nobody"}
		case s.Phase == "rcpt" && s.Argument == "full@example.com":
			return smtptest.Answer{Reply: "452 full"}
		}
		return smtptest.Answer{}
	}})
	m := mail
	m.Recipients = []string{"nobody@example.com", "ada@example.com", "full@example.com", "bob@example.com"}
	r := send(t, dial(t, config(t, server.URL("", ""))), m, true)
	require.NoError(t, r.Err)
	require.Equal(t, []smtp.State{smtp.Refused, smtp.Accepted, smtp.Deferred, smtp.Accepted}, states(r))
	require.Equal(t, "550 5.1.1 nobody", r.Recipients[0].Reply)
	require.Equal(t, []string{"ada@example.com", "bob@example.com"}, server.Taken()[0].Recipients)
}

func TestWhatNoServerIsAskedAbout(t *testing.T) {
	t.Parallel()
	server := start(t, smtptest.Config{Extensions: []string{"SIZE 20"}})
	s := dial(t, config(t, server.URL("", "")))
	r := send(t, s, mail, true)
	require.Equal(t, []smtp.State{smtp.Refused, smtp.Refused}, states(r))
	require.ErrorContains(t, r.Err, "the server takes 20")
	require.True(t, r.Usable)
	for _, address := range []string{"a@b>\r\nRCPT TO:<c@d", "<a@b.c>", "a b@c.d", "ä@b.c", ""} {
		r = send(t, s, smtp.Mail{Sender: "a@b.c", Recipients: []string{address}, Data: []byte("x")}, true)
		require.Equal(t, []smtp.State{smtp.Refused}, states(r), address)
	}
	for _, step := range server.Steps() {
		require.NotContains(t, []string{"mail", "rcpt"}, step.Phase)
	}
}

func TestTheAttemptsTimeAndTheEndOfTheContext(t *testing.T) {
	t.Parallel()
	server := start(t, smtptest.Config{Script: func(s smtptest.Step) smtptest.Answer {
		return smtptest.Answer{Silent: s.Phase == "end"}
	}})
	c := config(t, server.URL("", ""))
	r := dial(t, c).Send(t.Context(), mail, true, time.Now().Add(-time.Second), smtp.Hooks{})
	require.Equal(t, []smtp.State{smtp.Deferred, smtp.Deferred}, states(r), "thawed after its time: nothing is begun")

	ctx, cancel := context.WithCancel(t.Context())
	r = dial(t, c).Send(ctx, mail, true, time.Now().Add(time.Minute), smtp.Hooks{Dotted: cancel})
	require.Equal(t, []smtp.State{smtp.Unknown, smtp.Unknown}, states(r))
}

func TestAServerThatNeverStopsTalking(t *testing.T) {
	t.Parallel()
	server := start(t, smtptest.Config{Script: func(s smtptest.Step) smtptest.Answer {
		if s.Phase == "mail" {
			return smtptest.Answer{Reply: strings.Repeat("250-more\n", 100_000) + "250 end"}
		}
		return smtptest.Answer{}
	}})
	r := send(t, dial(t, config(t, server.URL("", ""))), mail, false)
	require.Equal(t, []smtp.State{smtp.Deferred, smtp.Deferred}, states(r))
	require.ErrorContains(t, r.Err, "too much")
}
