package outbox

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/logs"
)

// registerLine is the time between two log lines while the store does not answer.
const registerLine = 30 * time.Second

// Registrar tells the store through which durable a consumer reads, so that the
// stream keeps what it has not acknowledged. It goes on trying while the store is
// down; events are consumed meanwhile, and the stream keeps the last days anyway.
type Registrar struct {
	conn         *broker.Conn
	stream, name string
	log          *slog.Logger
	next         chan string // capacity 1: the durable to register, the latest only
}

// NewRegistrar returns the registrar of the consumer called name.
func NewRegistrar(conn *broker.Conn, stream, name string, log *slog.Logger) *Registrar {
	return &Registrar{conn, stream, name, log, make(chan string, 1)}
}

// Announce takes the name of a durable; it is a broker.SubscriberConfig.OnDurable. It never blocks.
func (r *Registrar) Announce(_ context.Context, durable string) {
	for {
		select {
		case r.next <- durable:
			return
		default:
		}
		select { // an older name
		case <-r.next:
		default:
		}
	}
}

// Run registers what is announced, until ctx ends.
func (r *Registrar) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case durable := <-r.next:
			r.register(ctx, durable)
		}
	}
}

func (r *Registrar) register(ctx context.Context, durable string) {
	attempts, cancel := context.WithTimeout(ctx, registerLine)
	defer cancel()
	err := Register(attempts, r.conn, r.stream, r.name, durable)
	switch {
	case err == nil || ctx.Err() != nil:
	case errors.Is(err, ErrRegistration):
		r.log.ErrorContext(ctx, "store refuses to register the consumer", logs.Consumer, durable, logs.Error, err)
	default:
		r.log.WarnContext(ctx, "consumer is not registered with the store yet", logs.Consumer, durable, logs.Error, err)
		select {
		case r.next <- durable: // once more
		default: // a newer name waits
		}
	}
}
