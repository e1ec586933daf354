package queue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/pillarbox/pillarbox/services/suite/inprocess"
	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/logs"
)

// dialTimeout is how long a server at --nats may take to answer.
const dialTimeout = 5 * time.Second

// Address says whose queues are meant.
type Address struct {
	Data string `name:"data" env:"PILLARBOX_DATA" default:"./data" type:"path" help:"Data folder of a suite, running or not."`
	NATS string `name:"nats" env:"PILLARBOX_NATS_URL" placeholder:"URL" help:"NATS servers instead, as nats://user:password@host:port, several separated by commas. PILLARBOX_NATS_URL_FILE names a file with it."`
}

// AfterApply lets the command line go before the environment.
func (a *Address) AfterApply(k *kong.Context) error {
	onLine := map[string]bool{}
	for _, p := range k.Path {
		if p.Flag != nil && !p.Resolved {
			onLine[p.Flag.Name] = true
		}
	}
	switch {
	case onLine["data"] && onLine["nats"]:
		return errors.New("--data and --nats are two addresses: give one")
	case onLine["data"]:
		a.NATS = ""
	}
	return nil
}

// open connects to the broker.
func (w *work) open(ctx context.Context) error {
	log := logs.New(w.Err, "text", slog.LevelError)
	if w.address.NATS != "" {
		return w.dial(ctx, log)
	}
	attached, err := inprocess.Attach(ctx, w.address.Data, log)
	if err != nil {
		return err
	}
	w.Conn, w.closeBroker, w.suite = attached.Conn, attached.Close, attached.Suite
	if attached.Alone {
		w.folder = w.address.Data
	}
	return nil
}

func (w *work) close() error {
	if w.closeBroker == nil {
		return nil
	}
	err := w.closeBroker()
	w.Conn, w.closeBroker, w.folder = nil, nil, ""
	return err
}

// reopen is for after a lost connection. To a NATS server it comes back by itself. A suite that has stopped may be
// about to start again, so its folder is left alone. What another command had opened is free now.
func (w *work) reopen(ctx context.Context) error {
	switch {
	case w.address.NATS != "":
		return nil
	case w.suite:
		return fmt.Errorf("the suite on %s has stopped", w.address.Data)
	}
	if err := w.close(); err != nil {
		return err
	}
	return w.open(ctx)
}

func (w *work) dial(ctx context.Context, log *slog.Logger) error {
	address := w.address.NATS
	conn, err := broker.Connect(broker.Config{URL: address, Name: "pillarbox-operator"}, log)
	if err != nil {
		return withoutPassword(err)
	}
	wait, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	if err := conn.AwaitReady(wait); err != nil {
		conn.Close()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return fmt.Errorf("%s: %w", redacted(address), err)
	}
	w.Conn, w.closeBroker = conn, func() error { conn.Close(); return nil }
	return nil
}

// redacted is the address without passwords and tokens.
func redacted(address string) string {
	var shown []string
	for one := range strings.SplitSeq(address, ",") {
		u, err := url.Parse(strings.TrimSpace(one))
		if err != nil || u.Host == "" {
			shown = append(shown, "the NATS address")
			continue
		}
		shown = append(shown, u.Scheme+"://"+u.Host)
	}
	return strings.Join(shown, ",")
}

// withoutPassword drops the text of errors that repeat the address.
func withoutPassword(err error) error {
	var parse *url.Error
	if errors.As(err, &parse) {
		return fmt.Errorf("connect to broker: the NATS address is not a URL: %w", parse.Err)
	}
	return err
}
