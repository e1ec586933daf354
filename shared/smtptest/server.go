// Package smtptest is a mail server for tests that obeys a script: it may answer
// any step with any code, keep silent, end the connection, or take a mail and
// never say so. Only tests import it.
//
// Without a script it takes every mail. It keeps what it took, in order, also
// when the client never learnt of it: Taken is the truth that a client's own
// records are compared with.
package smtptest

import (
	"bufio"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/textproto"
	"strings"
	"sync"
)

// Step is where a connection is: what the client sent and what the server is about to answer.
type Step struct {
	// Phase is greeting, ehlo, starttls, auth, mail, rcpt, data, body (354 is about to be followed by the
	// mail: the answer comes in the middle of it), end (the mail is whole), rset, noop or quit.
	Phase      string
	Argument   string // what stood behind the verb; for rcpt and mail the address
	Connection int    // from 1
	Mail       int    // of the connection, from 1
}

// Answer is what the server does at a step. The zero value is the usual, positive answer.
type Answer struct {
	Reply  string // instead of the usual one, e.g. "451 later"
	Close  bool   // end the connection, after Reply if there is one
	Silent bool   // never answer; the connection stays open until the client or the server ends it
	// Take: at end, the mail is taken although Reply, Close or Silent keep that from the client.
	Take bool
	// Wait, when not nil, is waited for before anything else.
	Wait <-chan struct{}
}

// Config of Start.
type Config struct {
	// Script is asked at every step; nil: everything is taken. It may be called by many connections at once.
	Script func(Step) Answer
	// Certificate makes the server offer STARTTLS.
	Certificate *tls.Certificate
	// Implicit: TLS from the first byte.
	Implicit bool
	// User and Password make the server offer AUTH PLAIN and want it before MAIL.
	User, Password string
	// Extensions are further lines of the answer to EHLO, e.g. "SIZE 1000".
	Extensions []string
	// Address to listen on; a free port of the loopback by default.
	Address string
}

// Mail is what the server took.
type Mail struct {
	Sender     string
	Recipients []string
	Data       []byte // with lines ending in LF
	Connection int
	Encrypted  bool
	User       string
}

// Server is a running mail server.
type Server struct {
	config   Config
	listener net.Listener
	running  sync.WaitGroup

	mu          sync.Mutex // guards the rest
	script      func(Step) Answer
	taken       []Mail
	steps       []Step
	connections map[net.Conn]bool
	count       int
	closed      bool
}

// Start listens and serves until Close.
func Start(c Config) (*Server, error) {
	if c.Address == "" {
		c.Address = "127.0.0.1:0"
	}
	l, err := net.Listen("tcp", c.Address)
	if err != nil {
		return nil, err
	}
	s := &Server{config: c, listener: l, script: c.Script, connections: map[net.Conn]bool{}}
	s.running.Go(s.accept)
	return s, nil
}

// Address is host:port.
func (s *Server) Address() string { return s.listener.Addr().String() }

// URL is smtp://host:port, with user and query when they are not empty.
func (s *Server) URL(user, query string) string {
	scheme := "smtp"
	if s.config.Implicit {
		scheme = "smtps"
	}
	if user != "" {
		user += "@"
	}
	if query != "" {
		query = "?" + query
	}
	return scheme + "://" + user + s.Address() + query
}

// SetScript changes the script.
func (s *Server) SetScript(script func(Step) Answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.script = script
}

// Taken returns the mails taken so far.
func (s *Server) Taken() []Mail {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Mail(nil), s.taken...)
}

// Steps returns the steps so far.
func (s *Server) Steps() []Step {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Step(nil), s.steps...)
}

// Open is the number of connections now, and Connections the number ever.
func (s *Server) Open() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.connections)
}

// Connections is how many connections there ever were.
func (s *Server) Connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count
}

// Close ends everything and waits.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	_ = s.listener.Close() // nothing else closes it
	for c := range s.connections {
		_ = c.Close() // whoever works on it ends by this
	}
	s.mu.Unlock()
	s.running.Wait()
}

func (s *Server) accept() {
	for {
		conn, err := s.listener.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		if s.closed {
			_ = conn.Close()
		}
		s.connections[conn] = true
		s.count++
		dialog := &dialog{server: s, raw: conn, number: s.count}
		s.mu.Unlock()
		s.running.Go(func() {
			dialog.serve()
			_ = conn.Close()
			s.mu.Lock()
			delete(s.connections, conn)
			s.mu.Unlock()
		})
	}
}

// dialog is one connection.
type dialog struct {
	server    *Server
	raw       net.Conn
	text      *textproto.Reader
	out       io.Writer
	number    int
	mail      int
	encrypted bool
	user      string
	current   *Mail
}

func (d *dialog) use(c net.Conn) {
	d.text, d.out = textproto.NewReader(bufio.NewReader(c)), c
}

func (d *dialog) upgrade() bool {
	c := tls.Server(d.raw, &tls.Config{Certificates: []tls.Certificate{*d.server.config.Certificate}})
	if c.Handshake() != nil {
		return false
	}
	d.use(c)
	d.encrypted = true
	return true
}

// at asks the script and does what it says; false ends the connection. usual is the answer that it may leave alone.
func (d *dialog) at(phase, argument, usual string) (Answer, bool) {
	step := Step{Phase: phase, Argument: argument, Connection: d.number, Mail: d.mail}
	s := d.server
	s.mu.Lock()
	s.steps = append(s.steps, step)
	script := s.script
	s.mu.Unlock()
	var a Answer
	if script != nil {
		a = script(step)
	}
	if a.Wait != nil {
		<-a.Wait
	}
	if phase == "end" && (a == Answer{Wait: a.Wait} || a.Take) {
		s.mu.Lock()
		s.taken = append(s.taken, *d.current)
		s.mu.Unlock()
	}
	switch {
	case a.Silent:
		_, _ = io.Copy(io.Discard, d.raw) // until the other side has enough
		return a, false
	case a.Reply != "":
		usual = a.Reply
	case a.Close:
		return a, false
	}
	if usual != "" {
		if _, err := io.WriteString(d.out, strings.ReplaceAll(usual, "\n", "\r\n")+"\r\n"); err != nil {
			return a, false
		}
	}
	return a, !a.Close
}

// positive reports whether the client was told to go on.
func (a Answer) positive() bool { return a.Reply == "" || a.Reply[0] == '2' || a.Reply[0] == '3' }

func (d *dialog) serve() {
	d.use(d.raw)
	if d.server.config.Implicit && !d.upgrade() {
		return
	}
	d.mail = 1
	if _, ok := d.at("greeting", "", "220 test ESMTP"); !ok {
		return
	}
	for {
		line, err := d.text.ReadLine()
		if err != nil {
			return
		}
		verb, argument, _ := strings.Cut(line, " ")
		if !d.command(strings.ToLower(verb), argument) {
			return
		}
	}
}

func (d *dialog) command(verb, argument string) bool {
	ok := true
	var a Answer
	switch verb {
	case "ehlo", "helo":
		_, ok = d.at("ehlo", argument, d.greeting())
	case "starttls":
		if a, ok = d.at("starttls", "", "220 go ahead"); ok && a.positive() {
			ok = d.upgrade()
		}
	case "auth":
		ok = d.authenticate(argument)
	case "mail":
		usual := "250 sender ok"
		if d.server.config.User != "" && d.user == "" {
			usual = "530 authenticate first"
		}
		sender := address(argument)
		if a, ok = d.at("mail", sender, usual); ok && a.positive() {
			d.current = &Mail{Sender: sender, Connection: d.number, Encrypted: d.encrypted, User: d.user}
		}
	case "rcpt":
		recipient := address(argument)
		if a, ok = d.at("rcpt", recipient, "250 recipient ok"); ok && a.positive() && d.current != nil {
			d.current.Recipients = append(d.current.Recipients, recipient)
		}
	case "data":
		ok = d.data()
	case "rset":
		d.current = nil
		_, ok = d.at("rset", "", "250 reset")
	case "noop":
		_, ok = d.at("noop", "", "250 ok")
	case "quit":
		_, _ = d.at("quit", "", "221 bye")
		ok = false
	default:
		_, ok = d.at(verb, argument, "500 what?")
	}
	return ok
}

// address is what stands between the angle brackets.
func address(argument string) string {
	_, rest, _ := strings.Cut(argument, "<")
	inside, _, _ := strings.Cut(rest, ">")
	return inside
}

func (d *dialog) greeting() string {
	lines := []string{"test"}
	c := d.server.config
	if c.Certificate != nil && !d.encrypted {
		lines = append(lines, "STARTTLS")
	}
	if c.User != "" {
		lines = append(lines, "AUTH PLAIN")
	}
	lines = append(lines, c.Extensions...)
	for i, line := range lines {
		separator := "-"
		if i == len(lines)-1 {
			separator = " "
		}
		lines[i] = "250" + separator + line
	}
	return strings.Join(lines, "\n")
}

func (d *dialog) authenticate(argument string) bool {
	c := d.server.config
	_, initial, _ := strings.Cut(argument, " ")
	said, err := base64.StdEncoding.DecodeString(initial)
	if err != nil || string(said) != "\x00"+c.User+"\x00"+c.Password {
		_, ok := d.at("auth", "", "535 wrong")
		return ok
	}
	a, ok := d.at("auth", c.User, "235 welcome")
	if ok && a.positive() {
		d.user = c.User
	}
	return ok
}

func (d *dialog) data() bool {
	if d.current == nil || len(d.current.Recipients) == 0 {
		_, ok := d.at("data", "", "503 no recipients")
		return ok
	}
	a, ok := d.at("data", "", "354 go on")
	if !ok || !a.positive() {
		return ok
	}
	if a, ok = d.at("body", "", ""); !ok || a.Reply != "" {
		return false
	}
	var err error
	if d.current.Data, err = io.ReadAll(d.text.DotReader()); err != nil {
		return false
	}
	_, ok = d.at("end", "", fmt.Sprintf("250 taken as %d", d.mail))
	d.current = nil
	d.mail++
	return ok
}
