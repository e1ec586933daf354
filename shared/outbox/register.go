package outbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/nats-io/nats.go"
	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/logs"
)

const (
	registerTimeout = 2 * time.Second
	maxRegistration = 4 << 10 // bytes of one request
	maxRegistered   = 64      // consumers: the purge asks for each of them
	queueGroup      = "pillarbox-register"
)

// ErrRegistration means that the store will never take this registration.
var ErrRegistration = errors.New("registration refused")

// registration is what a consumer asks for: do not purge what durable has not acknowledged.
type registration struct {
	Name    string `json:"name"`
	Durable string `json:"durable"`
}

type registered struct {
	OK    bool   `json:"ok"`
	Error string `json:"error,omitempty"`
	Retry bool   `json:"retry,omitempty"` // asking again may help
}

func registerSubject(stream string) string { return "pillarbox.register." + stream }

// Register tells the store that consumer name reads the stream through durable, so that
// nothing is purged before durable has acknowledged it. It asks until the store
// has answered or ctx ends; only an ErrRegistration is final before that.
func Register(ctx context.Context, conn *broker.Conn, stream, name, durable string) error {
	body, err := json.Marshal(registration{Name: name, Durable: durable})
	if err != nil {
		return fmt.Errorf("register %s: %w", name, err)
	}
	pauses := backoff.NewExponentialBackOff()
	pauses.InitialInterval, pauses.MaxInterval = 50*time.Millisecond, 5*time.Second
	for {
		err := request(ctx, conn, registerSubject(stream), body)
		if err == nil || errors.Is(err, ErrRegistration) {
			return err
		}
		if !sleep[struct{}](ctx, pauses.NextBackOff(), nil) {
			return fmt.Errorf("register %s: %w (%w)", name, context.Cause(ctx), err)
		}
	}
}

func request(ctx context.Context, conn *broker.Conn, subject string, body []byte) error {
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	reply, err := conn.NATS.RequestWithContext(ctx, subject, body)
	if err != nil {
		return fmt.Errorf("ask the store: %w", err)
	}
	var answer registered
	if err := json.Unmarshal(reply.Data, &answer); err != nil {
		return fmt.Errorf("read the store's answer: %w", err)
	}
	switch {
	case answer.OK:
		return nil
	case answer.Retry:
		return fmt.Errorf("the store answered: %s", answer.Error)
	}
	return fmt.Errorf("%w: %s", ErrRegistration, answer.Error)
}

// answers is the responder of one replica.
type answers struct {
	cancel context.CancelFunc
	done   sync.WaitGroup
	err    error
}

// answerRegistrations answers until stop. Replicas share the requests.
func (r *Relay) answerRegistrations(ctx context.Context) (*answers, error) {
	requests, err := r.conn.NATS.QueueSubscribeSync(registerSubject(r.c.Stream), queueGroup)
	if err != nil {
		return nil, fmt.Errorf("subscribe to registrations: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	a := &answers{cancel: cancel}
	a.done.Go(func() {
		for ctx.Err() == nil {
			request, err := requests.NextMsgWithContext(ctx)
			if errors.Is(err, nats.ErrSlowConsumer) {
				continue // some requests were dropped, and will be asked again
			}
			if err != nil {
				break
			}
			r.answer(ctx, request)
		}
		if err := requests.Unsubscribe(); !errors.Is(err, nats.ErrConnectionClosed) && !errors.Is(err, nats.ErrBadSubscription) {
			a.err = err
		}
	})
	return a, nil
}

func (a *answers) stop() error {
	a.cancel()
	a.done.Wait()
	return a.err
}

func (r *Relay) answer(ctx context.Context, request *nats.Msg) {
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	reply := registered{OK: true}
	if err := r.register(ctx, request.Data); err != nil {
		reply = registered{Error: err.Error(), Retry: !errors.Is(err, ErrRegistration)}
		if reply.Retry {
			reply.Error = "the store cannot write it now"
		}
		r.log.WarnContext(ctx, "consumer not registered", logs.Error, err)
	}
	body, err := json.Marshal(reply)
	if err == nil {
		err = request.Respond(body)
	}
	if err != nil && ctx.Err() == nil {
		r.log.WarnContext(ctx, "registration not answered", logs.Error, err)
	}
}

// register checks the request and writes it down.
func (r *Relay) register(ctx context.Context, body []byte) error {
	wanted, err := parseRegistration(body)
	if err != nil {
		return err
	}
	return r.db.Tx(ctx, func(ctx context.Context, tx *database.Tx) error {
		var others int
		if err := tx.QueryRowContext(ctx, `SELECT count(*) FROM consumers WHERE name <> $1`, wanted.Name).
			Scan(&others); err != nil {
			return fmt.Errorf("count consumers: %w", err)
		}
		if others >= maxRegistered {
			return fmt.Errorf("%w: %d consumers are registered already", ErrRegistration, others)
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO consumers (name, durable) VALUES ($1, $2)
			ON CONFLICT (name) DO UPDATE SET durable = excluded.durable, registered_at = excluded.registered_at`,
			wanted.Name, wanted.Durable)
		if err != nil {
			return fmt.Errorf("write consumer: %w", err)
		}
		return nil
	})
}

func parseRegistration(body []byte) (registration, error) {
	var wanted registration
	if len(body) > maxRegistration {
		return wanted, fmt.Errorf("%w: the request is too long", ErrRegistration)
	}
	decoder := json.NewDecoder(bytes.NewReader(body))
	if err := decoder.Decode(&wanted); err != nil {
		return wanted, fmt.Errorf("%w: the request is not JSON", ErrRegistration)
	}
	if !regexp.MustCompile(`^[a-z][a-z0-9_-]{0,63}$`).MatchString(wanted.Name) {
		return wanted, fmt.Errorf("%w: the name must be 1 to 64 of a-z, 0-9, _ and -", ErrRegistration)
	}
	if !regexp.MustCompile(`^[A-Za-z0-9_-]{1,128}$`).MatchString(wanted.Durable) {
		return wanted, fmt.Errorf("%w: the durable must be 1 to 128 of A-Z, a-z, 0-9, _ and -", ErrRegistration)
	}
	return wanted, nil
}
