// Package broker is the Watermill publisher and subscriber over NATS JetStream,
// written for durable streams and competing consumers.
//
// It promises: a confirmed publish is in the stream (and on disk, when the
// server syncs always); a message that was not acknowledged comes again; the
// replicas of a group share the messages of one durable consumer; a subscriber
// never gives up, whatever happens to the connection, the stream or the durable.
//
// It does not promise order between messages in flight, nor that a message comes
// only once: whoever handles messages must recognise an event that it has handled.
//
// A crash leaves behind: publishes whose outcome is unknown (publish them again
// with the same publish id), and messages in flight, which the broker hands to
// another replica after the ack deadline.
package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/pillarbox/pillarbox/shared/logs"
)

const (
	connectTimeout = time.Second            // of one attempt at one address
	reconnectWait  = 100 * time.Millisecond // doubles up to reconnectMax
	reconnectMax   = 2 * time.Second
	pingInterval   = 3 * time.Second // two unanswered pings: the connection is dead
	apiTimeout     = 5 * time.Second // of one JetStream request when the caller sets none
	flushTimeout   = 2 * time.Second
)

// Config of Connect.
type Config struct {
	URL string // nats://user:password@host:port, several separated by commas
	// Name is shown by the server, and makes the inboxes' subjects begin with _INBOX.<name>, so that
	// a server's permissions can keep the answers to one client from the others.
	Name   string
	Token  string
	Server nats.InProcessConnProvider // an embedded server; then URL is ignored
}

// Conn is a connection that reconnects for ever.
type Conn struct {
	NATS *nats.Conn
	JS   jetstream.JetStream
	log  *slog.Logger
	link *link
}

// Connect returns at once, also when no server answers yet: the connection is
// made in the background and kept. (An address that swallows packets costs one
// connect timeout of a second.) The error is about the configuration only.
func Connect(c Config, log *slog.Logger) (*Conn, error) {
	if log == nil {
		log = logs.Discard()
	}
	if c.URL == "" && c.Server == nil {
		return nil, errors.New("connect to broker: neither a URL nor a server is given")
	}
	l := newLink()
	options := append(lasting(log, l), nats.Name(c.Name))
	if c.Name != "" {
		options = append(options, nats.CustomInboxPrefix(nats.InboxPrefix+c.Name))
	}
	if c.Token != "" {
		options = append(options, nats.Token(c.Token))
	}
	if c.Server != nil {
		options = append(options, nats.InProcessServer(c.Server))
	}
	nc, err := nats.Connect(c.URL, options...)
	if err != nil {
		return nil, fmt.Errorf("connect to broker: %w", err)
	}
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(apiTimeout))
	if err != nil {
		nc.Close()
		return nil, fmt.Errorf("connect to broker: %w", err)
	}
	return &Conn{NATS: nc, JS: js, log: log, link: l}, nil
}

// lasting are the options of a connection that survives everything.
func lasting(log *slog.Logger, l *link) []nats.Option {
	return []nats.Option{
		nats.RetryOnFailedConnect(true),
		nats.MaxReconnects(-1),
		nats.IgnoreAuthErrorAbort(), // a rolled password must not end the connection for good
		nats.Timeout(connectTimeout),
		nats.PingInterval(pingInterval),
		nats.MaxPingsOutstanding(2),
		nats.CustomReconnectDelay(func(attempts int) time.Duration {
			return min(reconnectWait<<min(attempts, 10), reconnectMax)
		}),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			l.lost()
			if err != nil {
				log.Warn("broker connection lost", logs.Error, err)
			}
		}),
		nats.ReconnectHandler(func(nc *nats.Conn) {
			log.Info("broker connected", logs.Address, nc.ConnectedUrlRedacted())
		}),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			log.Warn("broker reported an error", logs.Error, err)
		}),
	}
}

// Ready reports whether the server answers and JetStream works.
func (c *Conn) Ready(ctx context.Context) error {
	if !c.NATS.IsConnected() {
		return ErrDisconnected
	}
	if _, err := c.JS.AccountInfo(ctx); err != nil {
		return fmt.Errorf("ask broker for its state: %w", err)
	}
	return nil
}

// Close sends what is buffered and closes the connection. Close subscribers and publishers first.
func (c *Conn) Close() {
	c.flush()
	c.NATS.Close()
}

// flush waits until the server has read everything that was sent.
func (c *Conn) flush() {
	if c.NATS.IsConnected() {
		_ = c.NATS.FlushTimeout(flushTimeout) // nothing can be done; unread acks mean redelivery
	}
}
