package smtp

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"time"
)

// Security says when a connection must be encrypted.
type Security string

// The securities.
const (
	Required      Security = "required"      // STARTTLS with a certificate that is right for the host, or no mail
	Opportunistic Security = "opportunistic" // STARTTLS when it is offered, with any certificate when there is no password to lose
	Off           Security = "off"           // never STARTTLS
)

// Server says where mails go and how.
type Server struct {
	Host     string
	Port     string
	User     string
	Password string
	Security Security
	// Implicit: TLS from the first byte (smtps, usually port 465) instead of STARTTLS.
	Implicit bool
	// Timeout of the connect and of each command; see Session for what is derived from it.
	Timeout time.Duration
}

const standardTimeout = 30 * time.Second

// ParseServer reads smtp://user@host:port?tls=required|opportunistic|off&timeout=30s, or smtps://… for TLS from
// the first byte. Its errors never quote the text, which may hold a password.
func ParseServer(text string) (Server, error) {
	u, err := url.Parse(text)
	if err != nil {
		return Server{}, errors.New("not a URL")
	}
	s := Server{Host: u.Hostname(), Port: u.Port(), User: u.User.Username(), Implicit: u.Scheme == "smtps", Timeout: standardTimeout}
	_, password := u.User.Password()
	port, err := strconv.ParseUint(s.Port, 10, 16)
	switch {
	case u.Scheme != "smtp" && u.Scheme != "smtps":
		return Server{}, errors.New("the scheme is not smtp or smtps")
	case password:
		return Server{}, errors.New("the password must not stand in it")
	case s.Host == "" || err != nil || port == 0:
		return Server{}, errors.New("host or port is missing")
	case u.Path != "" && u.Path != "/" || u.Fragment != "":
		return Server{}, errors.New("something stands behind the port")
	}
	if err := s.options(u.RawQuery); err != nil {
		return Server{}, err
	}
	return s, nil
}

func (s *Server) options(query string) error {
	values, err := url.ParseQuery(query)
	if err != nil {
		return errors.New("the part behind ? cannot be read")
	}
	for name, all := range values {
		if name != "tls" && name != "timeout" {
			return errors.New("the part behind ? knows only tls and timeout")
		}
		if len(all) > 1 {
			return fmt.Errorf("%s stands there twice", name)
		}
	}
	s.Security = Security(values.Get("tls"))
	if s.Security == "" {
		s.Security = Opportunistic
		if s.User != "" || s.Implicit {
			s.Security = Required
		}
	}
	switch {
	case !slices.Contains([]Security{Required, Opportunistic, Off}, s.Security):
		return errors.New("tls is not required, opportunistic or off")
	case s.Security == Off && s.User != "":
		return errors.New("tls=off with a user would send the password in clear")
	case s.Implicit && s.Security != Required:
		return errors.New("smtps is always tls=required")
	}
	if text := values.Get("timeout"); text != "" {
		if s.Timeout, err = time.ParseDuration(text); err != nil || s.Timeout < 100*time.Millisecond || s.Timeout > 10*time.Minute {
			return errors.New("timeout is not 100ms to 10m")
		}
	}
	return nil
}

// Address is host:port.
func (s Server) Address() string { return net.JoinHostPort(s.Host, s.Port) }

// FinalTimeout is how long the answer to a whole mail may take: the server may look through it before it takes it.
func (s Server) FinalTimeout() time.Duration { return 4 * s.Timeout }

// WholeTimeout bounds one mail from its first command to the answer.
func (s Server) WholeTimeout() time.Duration { return 8 * s.Timeout }
