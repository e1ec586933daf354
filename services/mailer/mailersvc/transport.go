package mailersvc

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net/mail"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/pillarbox/pillarbox/services/mailer/internal/delivery"
	"github.com/pillarbox/pillarbox/services/mailer/internal/ledger"
	"github.com/pillarbox/pillarbox/services/mailer/internal/letter"
	"github.com/pillarbox/pillarbox/services/mailer/internal/pickup"
	"github.com/pillarbox/pillarbox/services/mailer/internal/sender"
	"github.com/pillarbox/pillarbox/services/mailer/internal/smtp"
	"github.com/pillarbox/pillarbox/shared/consumer"
	"github.com/pillarbox/pillarbox/shared/dispatch"
	"github.com/pillarbox/pillarbox/shared/logs"
	"github.com/pillarbox/pillarbox/shared/pace"
)

// Sending are the settings of the way out.
type Sending struct {
	Transport    string        `name:"transport" env:"PILLARBOX_MAILER_TRANSPORT" default:"pickup" help:"Where mails go: pickup (files in the pickup folder), or a mail server as smtp://user@host:port?tls=required|opportunistic|off&timeout=30s (STARTTLS; required is the default with a user, otherwise opportunistic), smtps://… for TLS from the first byte. The workers share the connections: one each."`
	SMTPPassword string        `name:"smtp-password" env:"PILLARBOX_MAILER_SMTP_PASSWORD" placeholder:"PASSWORD" help:"Password of the user at the mail server; it is never sent in clear; …_FILE names a file with it (no default)."`
	Roots        string        `name:"smtp-roots" env:"PILLARBOX_MAILER_SMTP_ROOTS" placeholder:"FILE" help:"PEM file with the authorities that the mail server's certificate is checked against (default: the system's)."`
	GiveUp       time.Duration `name:"give-up" env:"PILLARBOX_MAILER_GIVE_UP" default:"24h" help:"Mail server: time of attempts after which a mail that is still deferred becomes a dead letter (1m to 168h)."`
}

// Secrets are the settings that may be given as files.
func Secrets() []string { return []string{"PILLARBOX_MAILER_SMTP_PASSWORD"} }

// names of the budgets: each way out has its own.
const (
	toPickup = "pickup"
	toSMTP   = "smtp"
)

func (s Sending) withDefaults() Sending {
	s.Transport = cmp.Or(s.Transport, toPickup)
	s.GiveUp = cmp.Or(s.GiveUp, 24*time.Hour)
	return s
}

// validate calls check for each setting.
func (s Sending) validate(check func(ok bool, name, rule string)) {
	server, err := s.server()
	rule := "pickup, or smtp://user@host:port?tls=required|opportunistic|off&timeout=30s"
	if err != nil {
		rule += " (" + err.Error() + ")"
	}
	check(err == nil, "TRANSPORT", rule)
	check(err != nil || (server.User == "") == (s.SMTPPassword == ""), "SMTP_PASSWORD", "set when PILLARBOX_MAILER_TRANSPORT has a user, and only then")
	_, err = s.roots()
	check(err == nil, "SMTP_ROOTS", "a PEM file with certificates")
	check(s.GiveUp >= time.Minute && s.GiveUp <= 168*time.Hour, "GIVE_UP", "1m to 168h")
}

// name is the budget's.
func (s Sending) name() string {
	if s.Transport == toPickup {
		return toPickup
	}
	return toSMTP
}

// server is the mail server, nothing for the pickup folder.
func (s Sending) server() (smtp.Server, error) {
	if s.Transport == toPickup {
		return smtp.Server{}, nil
	}
	server, err := smtp.ParseServer(s.Transport)
	server.Password = s.SMTPPassword
	return server, err
}

// roots are the authorities to trust, nil for the system's.
func (s Sending) roots() (*x509.CertPool, error) {
	if s.Roots == "" {
		return nil, nil
	}
	text, err := os.ReadFile(s.Roots)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, errors.New("no certificate in it")
	}
	return pool, nil
}

// transport is one way out for mails.
type transport interface {
	// effect is what the consumer does with events.
	effect() consumer.Effect
	// run works until stop, and helps until helping ends: the consumer's drain lies between.
	run(stop, helping context.Context)
	// ready reports why mails cannot go out now, or nil.
	ready(ctx context.Context) error
}

func newTransport(c Config, d Deps, letters *letter.Renderer, drafts dispatch.Strategy[*delivery.Draft], pacer *pace.Pacer) (transport, error) {
	if c.Transport == toPickup {
		return newPickup(c, d, drafts, pacer)
	}
	return newSMTP(c, d, letters, drafts, pacer)
}

// pickupFolder writes files.
type pickupFolder struct {
	folder   *delivery.Folder
	made     consumer.Effect
	sweeper  *delivery.Sweeper
	accepter *delivery.Accepter
	d        Deps
}

func newPickup(c Config, d Deps, drafts dispatch.Strategy[*delivery.Draft], pacer *pace.Pacer) (*pickupFolder, error) {
	metrics, err := delivery.NewMetrics(d.Registry)
	if err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	box := pickup.New(pickup.Config{Dir: c.Pickup, Mode: fs.FileMode(c.FileMode)}, pickup.System{})
	p := &pickupFolder{folder: delivery.NewFolder(box, d.DB), accepter: delivery.NewAccepter(d.DB, metrics, d.Log), d: d}
	p.sweeper = delivery.NewSweeper(delivery.SweepConfig{Every: c.Sweep, Grace: c.Sweep}, p.folder, d.DB, metrics, d.Log)
	p.made = delivery.NewEffect(drafts, p.folder, p.accepter, metrics, d.Log, time.Now).Paced(pacer)
	return p, nil
}

func (p *pickupFolder) effect() consumer.Effect { return p.made }

// run outlives the drain: its last groups are marked as accepted.
func (p *pickupFolder) run(_, helping context.Context) {
	if err := p.folder.Check(helping); err != nil {
		p.d.Log.WarnContext(helping, "pickup folder is not usable yet", logs.Error, err)
	}
	warnOfOthers(helping, p.d, ledger.Queued, ledger.Sending)
	var helpers sync.WaitGroup
	helpers.Go(func() { p.sweeper.Run(helping) })
	helpers.Go(func() { p.accepter.Run(helping) })
	helpers.Wait()
}

func (p *pickupFolder) ready(ctx context.Context) error {
	if err := p.folder.Check(ctx); err != nil {
		return fmt.Errorf("pickup folder: %w", err)
	}
	return nil
}

// mailServer hands mails over.
type mailServer struct {
	sender *sender.Sender
	made   consumer.Effect
	d      Deps
}

func newSMTP(c Config, d Deps, letters *letter.Renderer, drafts dispatch.Strategy[*delivery.Draft], pacer *pace.Pacer) (*mailServer, error) {
	server, err := c.server()
	if err != nil {
		return nil, err
	}
	roots, err := c.roots()
	if err != nil {
		return nil, err
	}
	from, err := mail.ParseAddress(c.From)
	if err != nil {
		return nil, err
	}
	metrics, err := sender.NewMetrics(d.Registry)
	if err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	config := sender.Config{
		SMTP: smtp.Config{Server: server, Name: c.Domain, Roots: roots}, From: from.Address, Workers: c.Workers,
		Backoff: c.Backoff, MaxBackoff: c.MaxBackoff, GiveUp: c.GiveUp, Drain: c.Drain,
	}
	if c.Dispatch == dispatch.ModeSingle {
		config.Workers = 1
	}
	deps := sender.Deps{DB: d.DB, Render: letters.Render, Metrics: metrics, Log: d.Log}
	if pacer.Limited() {
		deps.Budget = pacer
	}
	s, err := sender.New(config, deps)
	if err != nil {
		return nil, err
	}
	return &mailServer{sender: s, made: delivery.NewQueue(drafts, s, d.Log), d: d}, nil
}

func (m *mailServer) effect() consumer.Effect { return m.made }

// run ends sending at once at the stop: what is queued is durable.
func (m *mailServer) run(stop, _ context.Context) {
	warnOfOthers(stop, m.d, "staged")
	m.sender.Run(stop)
}

func (m *mailServer) ready(context.Context) error {
	if err := m.sender.Usable(); err != nil {
		return fmt.Errorf("mail server: %w", err)
	}
	return nil
}

// warnOfOthers tells of mails that only the other way out would finish.
func warnOfOthers(ctx context.Context, d Deps, states ...string) {
	for _, state := range states {
		left, err := ledger.List(ctx, d.DB, state, "", 1)
		if err == nil && len(left) > 0 {
			d.Log.WarnContext(ctx, "mails were left by another PILLARBOX_MAILER_TRANSPORT, and only that one sends them",
				"state", strings.ToLower(state), "delivery", left[0].ID)
		}
	}
}
