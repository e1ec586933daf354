package smtp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/textproto"
	"strings"
	"time"
	"unicode"

	gosmtp "github.com/wneessen/go-mail/smtp"
)

// Mail is what is handed over in one transaction.
type Mail struct {
	Sender     string   // of the envelope, a plain address
	Recipients []string // plain addresses
	Data       []byte   // the message, lines ending in CRLF
}

// State is what became of a mail for one recipient.
type State int

const (
	// Deferred: certainly not taken; another attempt may succeed.
	Deferred State = iota
	// Accepted: taken by the server.
	Accepted
	// Refused: certainly not taken, and the server never will.
	Refused
	// Unknown: the mail was sent to its end and no answer came. It may have been taken.
	Unknown
)

// Blame says what a mail that was not taken tells about the server.
type Blame int

const (
	// OfMail: the server answered about this mail; others may go.
	OfMail Blame = iota
	// OfConnection: the connection broke off before the end of the mail. Whether mail or server is to blame only a
	// new connection can tell.
	OfConnection
	// OfServer: the server takes no mail at all now, or our configuration is wrong. It says nothing about the mail.
	OfServer
)

// Verdict is what became of a mail for one recipient, with the server's words.
type Verdict struct {
	State State
	Reply string
}

// Result of one Send.
type Result struct {
	// Recipients has a verdict for each recipient of the mail, in its order.
	Recipients []Verdict
	Blame      Blame
	// Usable: the session may be used for another mail, after a Reset.
	Usable bool
	// Phase in which the mail ended: connection, mail, rcpt, data, body or end.
	Phase string
	Err   error // nil when the server answered to the end of the mail
}

// Codes of answers that are about the server or our access to it, whatever they answer to.
const (
	codeShutdown     = 421
	codeAuthRequired = 530
	codeTooWeak      = 534
	codeBadLogin     = 535
	codeEncrypt      = 538
	codeTooLarge     = 552
)

// Send hands a mail over, for as many of its recipients as the server takes: a recipient that is refused or
// deferred does not keep the mail from the others. own tells that the mail's sender is ours: then what the
// server says against it is no fault of the mail. until ends the attempt, and so does the end of ctx.
func (s *Session) Send(ctx context.Context, m Mail, own bool, until time.Time, hooks Hooks) Result {
	s.mails++
	t := &transaction{session: s, mail: m, own: own, until: until}
	t.result.Recipients = make([]Verdict, len(m.Recipients))
	defer context.AfterFunc(ctx, s.wire.cut)()
	t.result.Err = t.run(hooks)
	if !t.result.Usable {
		s.wire.cut()
	}
	return t.result
}

// Hooks are called between the steps; nil ones are skipped. Crash tests hang on them.
type Hooks struct {
	// Dotted: the mail was sent to its end and the answer is awaited.
	Dotted func()
}

type transaction struct {
	session *Session
	mail    Mail
	own     bool
	until   time.Time
	taken   []int // the recipients that the server takes
	dot     io.Closer
	result  Result
}

func (t *transaction) run(hooks Hooks) error {
	if err := t.check(); err != nil {
		t.result.Usable = true
		t.settle(Verdict{Refused, err.Error()})
		return err
	}
	for _, do := range []func() error{t.sender, t.recipients, t.data, t.body} {
		if err := do(); err != nil {
			return err
		}
		if t.result.Usable {
			return nil // no recipient is left
		}
	}
	return t.end(hooks)
}

var errLate = errors.New("the attempt's time is over")

// step gives the next command its time, but no more than what is left of the whole.
func (t *transaction) step(phase string, d time.Duration) error {
	t.result.Phase = phase
	now := time.Now()
	if !now.Before(t.until) {
		return t.failed(errLate)
	}
	end := now.Add(d)
	if end.After(t.until) {
		end = t.until
	}
	t.session.wire.until(end)
	return nil
}

// check refuses what no server is asked about.
func (t *transaction) check() error {
	for _, address := range append([]string{t.mail.Sender}, t.mail.Recipients...) {
		if len(address) < 3 || len(address) > 320 || strings.ContainsFunc(address, func(r rune) bool {
			return r <= ' ' || r > '~' || r == '<' || r == '>'
		}) {
			return errors.New("an address cannot stand in an SMTP command")
		}
	}
	if limit := t.session.limit(); limit > 0 && int64(len(t.mail.Data)) > limit {
		return fmt.Errorf("the mail has %d bytes and the server takes %d", len(t.mail.Data), limit)
	}
	return nil
}

func (t *transaction) sender() error {
	if err := t.step("mail", t.session.config.Server.Timeout); err != nil {
		return err
	}
	sender := "<" + t.mail.Sender + ">"
	if offered, _ := t.session.client.Extension("SIZE"); offered {
		sender += fmt.Sprintf(" SIZE=%d", len(t.mail.Data))
	}
	err := t.session.client.Mail(sender)
	if err == nil {
		return nil
	}
	err = t.failed(err)
	var reply *textproto.Error
	if errors.As(err, &reply) && t.own && reply.Code != codeTooLarge {
		t.result.Blame = OfServer // no word was said yet about anything but our own sender
	}
	return err
}

func (t *transaction) recipients() error {
	for i, recipient := range t.mail.Recipients {
		if err := t.step("rcpt", t.session.config.Server.Timeout); err != nil {
			return err
		}
		err := t.session.client.Rcpt("<" + recipient + ">")
		var reply *textproto.Error
		switch {
		case err == nil:
			t.taken = append(t.taken, i)
		case errors.As(err, &reply) && !aboutServer(reply) && stateOf(reply) != Unknown:
			t.result.Recipients[i] = Verdict{stateOf(reply), words(reply)}
		default:
			return t.failed(err)
		}
	}
	t.result.Usable = len(t.taken) == 0
	return nil
}

func (t *transaction) data() error {
	if err := t.step("data", t.session.config.Server.Timeout); err != nil {
		return err
	}
	w, err := t.session.client.Data()
	if err != nil {
		return t.failed(err)
	}
	closer, ok := w.(*gosmtp.DataCloser)
	if !ok {
		return t.failed(fmt.Errorf("unexpected writer %T", w))
	}
	// Its own Close hides whether the dot could be written.
	t.dot = closer.WriteCloser
	return nil
}

// body sends the mail without its final dot. What buffers hold goes too, so that a failure
// here is one before the dot.
func (t *transaction) body() error {
	if err := t.step("body", t.session.config.Server.WholeTimeout()); err != nil {
		return err
	}
	_, err := t.dot.(io.Writer).Write(t.mail.Data)
	if err == nil {
		err = t.session.client.Text.W.Flush()
	}
	if err != nil {
		return t.failed(err)
	}
	return nil
}

// end sends the final dot. From here on only the server's answer tells.
func (t *transaction) end(hooks Hooks) error {
	if err := t.step("end", t.session.config.Server.FinalTimeout()); err != nil {
		return err
	}
	err := t.dot.Close()
	if hooks.Dotted != nil {
		hooks.Dotted()
	}
	var text string
	if err == nil {
		_, text, err = t.session.client.Text.ReadResponse(250)
	}
	var reply *textproto.Error
	switch {
	case err == nil:
		t.result.Usable = true
		t.settle(Verdict{Accepted, clip("250 " + text)})
		return nil
	case !errors.As(err, &reply):
		t.settle(Verdict{Unknown, clip("no answer to the mail: " + err.Error())})
		return err
	}
	t.result.Usable = reply.Code != codeShutdown
	if !t.result.Usable {
		t.result.Blame = OfConnection
	}
	t.settle(Verdict{stateOf(reply), words(reply)})
	return reply
}

// failed ends the mail before its final dot: certainly not taken. It returns err.
func (t *transaction) failed(err error) error {
	var reply *textproto.Error
	if !errors.As(err, &reply) || stateOf(reply) == Unknown {
		t.result.Blame = OfConnection
		t.settle(Verdict{Deferred, clip(err.Error())})
		return err
	}
	switch {
	case reply.Code == codeShutdown && (t.result.Phase != "mail" || t.session.mails > 1):
		t.result.Blame = OfConnection // servers also end connections that had enough mails
	case aboutServer(reply):
		t.result.Blame = OfServer
	default:
		t.result.Usable = true
	}
	v := Verdict{stateOf(reply), words(reply)}
	if t.result.Blame != OfMail {
		v.State = Deferred
	}
	t.settle(v)
	return err
}

// settle gives v to the recipients that have no verdict of their own yet.
func (t *transaction) settle(v Verdict) {
	for i, have := range t.result.Recipients {
		if have == (Verdict{}) {
			t.result.Recipients[i] = v
		}
	}
}

// aboutServer reports whether an answer is about the server or our access to it, whatever it answers to.
func aboutServer(reply *textproto.Error) bool {
	switch reply.Code {
	case codeShutdown, codeAuthRequired, codeTooWeak, codeBadLogin, codeEncrypt:
		return true
	}
	return false
}

func stateOf(reply *textproto.Error) State {
	switch reply.Code / 100 {
	case 2:
		return Accepted
	case 4:
		return Deferred
	case 5:
		return Refused
	}
	return Unknown
}

func words(reply *textproto.Error) string { return clip(fmt.Sprintf("%d %s", reply.Code, reply.Msg)) }

// clip makes one line of limited length of what the server said.
func clip(s string) string {
	const most = 500
	s = strings.Join(strings.FieldsFunc(strings.ToValidUTF8(s, "?"), unicode.IsControl), " ")
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "")
	}
	return s
}
