// Package smtp hands mails to a mail server, and says of each failure what it
// means: whether the server may have the mail, and whether the mail or the
// server is to blame.
//
// It promises that a mail whose result is not Unknown was either taken by the
// server, for the recipients that the result says, or certainly not. The line is
// the final dot: before it was sent the server cannot have taken the mail; after
// that only the server's answer tells. A password is never sent in clear. Every
// wait has a deadline and every answer a limit.
//
// A crash leaves a connection that the server ends by itself, and possibly a mail
// of which nobody here knows whether it was taken: the caller must have written
// down beforehand that it was about to be sent.
package smtp

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	gosmtp "github.com/wneessen/go-mail/smtp"
)

// Config of Dial.
type Config struct {
	Server Server
	// Name is what the client calls itself in EHLO.
	Name string
	// Roots are the authorities that server certificates are checked against; nil: the system's.
	Roots *x509.CertPool
}

// Session is one connection to the mail server, ready for mails. It is not safe for concurrent use.
type Session struct {
	config Config
	wire   *wire
	client *gosmtp.Client
	mails  int
}

// ErrInsecure: the server does not offer the encryption that is required.
var ErrInsecure = errors.New("the mail server offers no STARTTLS")

// Dial connects, encrypts and authenticates. Every error is the server's or the configuration's, never a mail's.
func Dial(ctx context.Context, c Config) (*Session, error) {
	ctx, cancel := context.WithTimeout(ctx, c.Server.FinalTimeout())
	defer cancel()
	s, err := dial(ctx, c)
	if err != nil {
		if cause := ctx.Err(); cause != nil {
			err = errors.Join(cause, err)
		}
		return nil, fmt.Errorf("connect to mail server %s: %w", c.Server.Address(), err)
	}
	return s, nil
}

func dial(ctx context.Context, c Config) (_ *Session, err error) {
	dialer := net.Dialer{Timeout: c.Server.Timeout}
	conn, err := dialer.DialContext(ctx, "tcp", c.Server.Address())
	if err != nil {
		return nil, err
	}
	s := &Session{config: c, wire: &wire{Conn: conn}}
	defer context.AfterFunc(ctx, s.wire.cut)()
	defer func() {
		if err != nil {
			s.wire.cut()
		}
	}()
	s.wire.allow(c.Server.Timeout)
	stream := net.Conn(s.wire)
	if c.Server.Implicit {
		stream = tls.Client(s.wire, s.tls())
	}
	if s.client, err = gosmtp.NewClient(stream, c.Server.Host); err != nil {
		return nil, fmt.Errorf("greeting: %w", err)
	}
	s.client.SkipSMTPUTF8(true) // addresses are ASCII
	s.wire.allow(c.Server.Timeout)
	if err := s.client.Hello(c.Name); err != nil {
		return nil, fmt.Errorf("EHLO: %w", err)
	}
	if err := s.encrypt(); err != nil {
		return nil, err
	}
	return s, s.authenticate()
}

func (s *Session) tls() *tls.Config {
	c := &tls.Config{ServerName: s.config.Server.Host, RootCAs: s.config.Roots, MinVersion: tls.VersionTLS12}
	if s.config.Server.Security == Opportunistic && s.config.Server.User == "" {
		// Without STARTTLS the mail would go in clear: an unknown certificate is no worse (RFC 7435).
		c.InsecureSkipVerify = true
	}
	return c
}

func (s *Session) encrypt() error {
	if s.config.Server.Implicit || s.config.Server.Security == Off {
		return nil
	}
	if offered, _ := s.client.Extension("STARTTLS"); !offered {
		if s.config.Server.Security == Required {
			return ErrInsecure
		}
		return nil
	}
	s.wire.allow(s.config.Server.Timeout)
	if err := s.client.StartTLS(s.tls()); err != nil {
		return fmt.Errorf("STARTTLS: %w", err)
	}
	return nil
}

// authenticate uses the best of what the server offers and we know.
func (s *Session) authenticate() error {
	server := s.config.Server
	if server.User == "" {
		return nil
	}
	if _, encrypted := s.client.TLSConnectionState(); !encrypted && !server.Implicit {
		return fmt.Errorf("no password is sent in clear: %w", ErrInsecure)
	}
	offered, mechanisms := s.client.Extension("AUTH")
	known := strings.Fields(strings.ToUpper(mechanisms))
	var auth gosmtp.Auth
	switch {
	case !offered:
		return errors.New("the mail server offers no AUTH")
	case slices.Contains(known, "SCRAM-SHA-256"):
		auth = gosmtp.ScramSHA256Auth(server.User, server.Password)
	case slices.Contains(known, "PLAIN"):
		auth = gosmtp.PlainAuth("", server.User, server.Password, server.Host, false)
	case slices.Contains(known, "LOGIN"):
		auth = gosmtp.LoginAuth(server.User, server.Password, server.Host, false)
	default:
		return errors.New("the mail server offers none of SCRAM-SHA-256, PLAIN and LOGIN")
	}
	s.wire.allow(server.Timeout)
	if err := s.client.Auth(auth); err != nil {
		return fmt.Errorf("AUTH: %w", err)
	}
	return nil
}

// Mails is how many mails were begun.
func (s *Session) Mails() int { return s.mails }

// Reset makes sure that the connection still stands, and that nothing is left of an earlier mail.
func (s *Session) Reset(ctx context.Context) error {
	defer context.AfterFunc(ctx, s.wire.cut)()
	s.wire.allow(s.config.Server.Timeout)
	if err := s.client.Reset(); err != nil {
		return fmt.Errorf("RSET: %w", err)
	}
	return nil
}

// Quit says good-bye and closes the connection.
func (s *Session) Quit() {
	s.wire.allow(min(s.config.Server.Timeout, time.Second))
	_ = s.client.Quit() // nothing depends on the answer
	s.wire.cut()
}

// Cut closes the connection without a word.
func (s *Session) Cut() { s.wire.cut() }

// limit is the largest mail in bytes that the server says it takes; 0: it does not say.
func (s *Session) limit() int64 {
	_, text := s.client.Extension("SIZE")
	size, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil || size < 0 {
		return 0
	}
	return size
}
