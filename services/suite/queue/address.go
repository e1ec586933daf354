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

// open connects w to the broker.
func (a Address) open(ctx context.Context, w *work) (closeBroker func() error, err error) {
	log := logs.New(w.Err, "text", slog.LevelError)
	if a.NATS == "" {
		attached, err := inprocess.Attach(ctx, a.Data, log)
		if err != nil {
			return nil, err
		}
		w.Conn = attached.Conn
		if attached.Alone {
			w.folder = a.Data
		}
		return attached.Close, nil
	}
	conn, err := broker.Connect(broker.Config{URL: a.NATS, Name: "pillarbox-operator"}, log)
	if err != nil {
		return nil, withoutPassword(a.NATS, err)
	}
	wait, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	if err := conn.AwaitReady(wait); err != nil {
		conn.Close()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, fmt.Errorf("%s: %w", redacted(a.NATS), err)
	}
	w.Conn = conn
	return func() error { conn.Close(); return nil }, nil
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
func withoutPassword(address string, err error) error {
	var parse *url.Error
	if errors.As(err, &parse) {
		return fmt.Errorf("connect to broker: the NATS address is not a URL: %w", parse.Err)
	}
	return err
}
