package mailersvc

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/events"
	"github.com/pillarbox/pillarbox/shared/logs"
	"github.com/pillarbox/pillarbox/shared/outbox"
)

// registerLine is the time between two log lines while the store does not answer.
const registerLine = 30 * time.Second

// registrar tells the store through which durable this service reads, so that the
// stream keeps what it has not acknowledged. It goes on trying while the store is
// down, and events are consumed meanwhile: the stream keeps the last days anyway.
type registrar struct {
	conn *broker.Conn
	log  *slog.Logger
	next chan string // capacity 1: the durable to register, the latest only
}

func newRegistrar(conn *broker.Conn, log *slog.Logger) *registrar {
	return &registrar{conn, log, make(chan string, 1)}
}

// announce takes the name of a durable. It never blocks.
func (r *registrar) announce(_ context.Context, durable string) {
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

// run registers what is announced, until ctx ends.
func (r *registrar) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case durable := <-r.next:
			r.register(ctx, durable)
		}
	}
}

func (r *registrar) register(ctx context.Context, durable string) {
	attempts, cancel := context.WithTimeout(ctx, registerLine)
	defer cancel()
	err := outbox.Register(attempts, r.conn, events.StreamOrders, Name, durable)
	switch {
	case err == nil || ctx.Err() != nil:
	case errors.Is(err, outbox.ErrRegistration):
		r.log.ErrorContext(ctx, "store refuses to register the consumer", logs.Consumer, durable, logs.Error, err)
	default:
		r.log.WarnContext(ctx, "consumer is not registered with the store yet", logs.Consumer, durable, logs.Error, err)
		select {
		case r.next <- durable: // once more
		default: // a newer name waits
		}
	}
}
