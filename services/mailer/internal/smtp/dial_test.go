package smtp_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/mailer/internal/smtp"
	"github.com/pillarbox/pillarbox/shared/smtptest"
)

func TestEncryption(t *testing.T) {
	t.Parallel()
	authority, stranger := smtptest.NewAuthority(t), smtptest.NewAuthority(t)
	good, foreign, misnamed := authority.Certificate(t), stranger.Certificate(t), authority.Certificate(t, "other.example")
	for name, c := range map[string]struct {
		server smtptest.Config
		user   string
		query  string
		secure bool
		err    string
	}{
		"offered":                          {server: smtptest.Config{Certificate: good}, secure: true},
		"offered with a foreign one":       {server: smtptest.Config{Certificate: foreign}, secure: true},
		"offered and off":                  {server: smtptest.Config{Certificate: good}, query: "tls=off"},
		"not offered":                      {},
		"required":                         {server: smtptest.Config{Certificate: good}, query: "tls=required", secure: true},
		"required and not offered":         {query: "tls=required", err: "no STARTTLS"},
		"required and foreign":             {server: smtptest.Config{Certificate: foreign}, query: "tls=required", err: "certificate"},
		"required and misnamed":            {server: smtptest.Config{Certificate: misnamed}, query: "tls=required", err: "certificate"},
		"user":                             {server: smtptest.Config{Certificate: good, User: "shop", Password: "pw"}, user: "shop", secure: true},
		"user without encryption":          {server: smtptest.Config{User: "shop", Password: "pw"}, user: "shop", err: "no STARTTLS"},
		"user, opportunistic, none":        {server: smtptest.Config{User: "shop", Password: "pw"}, user: "shop", query: "tls=opportunistic", err: "in clear"},
		"user, opportunistic, foreign":     {server: smtptest.Config{Certificate: foreign, User: "shop", Password: "pw"}, user: "shop", query: "tls=opportunistic", err: "certificate"},
		"user with the wrong password":     {server: smtptest.Config{Certificate: good, User: "shop", Password: "other"}, user: "shop", err: "AUTH: 535"},
		"user where nobody authenticates":  {server: smtptest.Config{Certificate: good}, user: "shop", err: "no AUTH"},
		"implicit":                         {server: smtptest.Config{Certificate: good, Implicit: true}, secure: true},
		"implicit with a foreign one":      {server: smtptest.Config{Certificate: foreign, Implicit: true}, err: "certificate"},
		"implicit, with a user of its own": {server: smtptest.Config{Certificate: good, Implicit: true, User: "shop", Password: "pw"}, user: "shop", secure: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := start(t, c.server)
			config := config(t, server.URL(c.user, c.query))
			config.Server.Password, config.Roots = "pw", authority.Roots
			s, err := smtp.Dial(t.Context(), config)
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				require.NotContains(t, err.Error(), "pw")
				for _, step := range server.Steps() {
					require.NotEqual(t, "mail", step.Phase)
				}
				return
			}
			require.NoError(t, err)
			defer s.Quit()
			require.NoError(t, send(t, s, mail, true).Err)
			taken := server.Taken()
			require.Equal(t, c.secure, taken[0].Encrypted)
			require.Equal(t, c.user, taken[0].User)
		})
	}
}

func TestServersThatTakeNobody(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]smtptest.Answer{
		"4xx": {Reply: "421 too busy", Close: true}, "5xx": {Reply: "554 go away", Close: true}, "closed": {Close: true},
		"silent": {Silent: true}, "nonsense": {Reply: "SSH-2.0"},
	} {
		for _, phase := range []string{"greeting", "ehlo"} {
			t.Run(name+" "+phase, func(t *testing.T) {
				t.Parallel()
				server := start(t, smtptest.Config{Script: func(s smtptest.Step) smtptest.Answer {
					if s.Phase == phase {
						return answer
					}
					return smtptest.Answer{}
				}})
				_, err := smtp.Dial(t.Context(), config(t, server.URL("", "timeout=200ms")))
				require.ErrorContains(t, err, server.Address())
			})
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	_, err = smtp.Dial(t.Context(), config(t, "smtp://"+l.Addr().String()))
	require.ErrorContains(t, err, "refused")
}

func TestTheEndOfTheContextEndsADial(t *testing.T) {
	t.Parallel()
	server := start(t, smtptest.Config{Script: func(smtptest.Step) smtptest.Answer { return smtptest.Answer{Silent: true} }})
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	_, err := smtp.Dial(ctx, config(t, server.URL("", "")))
	require.ErrorIs(t, err, context.Canceled)
}

func TestParseServer(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]smtp.Server{
		"smtp://mail.example:25":                            {Host: "mail.example", Port: "25", Security: smtp.Opportunistic, Timeout: 30 * time.Second},
		"smtp://shop%40example.com@mail.example:587":        {Host: "mail.example", Port: "587", User: "shop@example.com", Security: smtp.Required, Timeout: 30 * time.Second},
		"smtp://[::1]:25?tls=off&timeout=2s":                {Host: "::1", Port: "25", Security: smtp.Off, Timeout: 2 * time.Second},
		"smtps://u@mail.example:465/":                       {Host: "mail.example", Port: "465", User: "u", Security: smtp.Required, Implicit: true, Timeout: 30 * time.Second},
		"smtp://u@mail.example:587?tls=opportunistic":       {Host: "mail.example", Port: "587", User: "u", Security: smtp.Opportunistic, Timeout: 30 * time.Second},
		"smtp://mail.example:25?tls=required&timeout=100ms": {Host: "mail.example", Port: "25", Security: smtp.Required, Timeout: 100 * time.Millisecond},
	} {
		got, err := smtp.ParseServer(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{
		"", "pickup", "mail.example:25", "http://mail.example:25", "smtp://mail.example", "smtp://:25", "smtp://mail.example:0", "smtp://mail.example:x",
		"smtp://u:secret@mail.example:587", "smtp://mail.example:25/inbox", "smtp://mail.example:25?tls=maybe", "smtp://mail.example:25?tsl=off",
		"smtp://u@mail.example:25?tls=off", "smtps://mail.example:465?tls=off", "smtp://mail.example:25?timeout=1", "smtp://mail.example:25?timeout=1h",
		"smtp://mail.example:25?timeout=1s&timeout=2s", "smtp://mail.example:25#x", "smtp://%zz@mail.example:25", "smtp://mail.example:25?%zz",
	} {
		_, err := smtp.ParseServer(text)
		require.Error(t, err, text)
		require.NotContains(t, err.Error(), "secret")
	}
}
