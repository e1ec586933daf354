package outbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/cenkalti/backoff/v5"
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
	// From asks for the events since then once more. Only the first one under a name counts.
	From *time.Time `json:"from,omitempty"`
	// Look only asks how far the replay is.
	Look bool `json:"look,omitempty"`
	// Acknowledged is the number of a replay of which durable has acknowledged all; with Look.
	Acknowledged int64 `json:"acknowledged,omitempty"`
}

type registered struct {
	OK    bool   `json:"ok"`
	Error string `json:"error,omitempty"`
	Retry bool   `json:"retry,omitempty"` // asking again may help
	Was   bool   `json:"was,omitempty"`   // deregistered: it had been registered
	// Replay is how far the events of the past are; nil: none were asked for, or the store is an older one.
	Replay *progress `json:"replay,omitempty"`
	// HorizonSeconds is how far back the store can publish events again; 0: it is an older one and does not say.
	HorizonSeconds int64 `json:"horizon_seconds,omitempty"`
}

func registerSubject(stream string) string { return "pillarbox.register." + stream }

// Register tells the store that consumer name reads the stream through durable, so that
// nothing is purged before durable has acknowledged it. It asks until the store
// has answered or ctx ends; only an ErrRegistration is final before that.
func Register(ctx context.Context, conn *broker.Conn, stream, name, durable string) error {
	_, err := register(ctx, conn, stream, registration{Name: name, Durable: durable})
	return err
}

func register(ctx context.Context, conn *broker.Conn, stream string, wanted registration) (registered, error) {
	body, err := json.Marshal(wanted)
	if err != nil {
		return registered{}, fmt.Errorf("register %s: %w", wanted.Name, err)
	}
	pauses := backoff.NewExponentialBackOff()
	pauses.InitialInterval, pauses.MaxInterval = 50*time.Millisecond, 5*time.Second
	for {
		answer, err := request(ctx, conn, registerSubject(stream), body)
		if err == nil || errors.Is(err, ErrRegistration) {
			return answer, err
		}
		if !sleep[struct{}](ctx, pauses.NextBackOff(), nil) {
			return answer, fmt.Errorf("register %s: %w (%w)", wanted.Name, context.Cause(ctx), err)
		}
	}
}

func request(ctx context.Context, conn *broker.Conn, subject string, body []byte) (answer registered, err error) {
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	reply, err := conn.NATS.RequestWithContext(ctx, subject, body)
	if err != nil {
		return answer, fmt.Errorf("ask the store: %w", err)
	}
	if err := json.Unmarshal(reply.Data, &answer); err != nil {
		return answer, fmt.Errorf("read the store's answer: %w", err)
	}
	switch {
	case answer.OK:
		return answer, nil
	case answer.Retry:
		return answer, fmt.Errorf("the store answered: %s", answer.Error)
	}
	return answer, fmt.Errorf("%w: %s", ErrRegistration, answer.Error)
}

// register checks the request and writes it down.
func (r *Relay) register(ctx context.Context, body []byte) (registered, error) {
	wanted, err := parseRegistration(body)
	if err != nil {
		return registered{}, err
	}
	if !regexp.MustCompile(`^[A-Za-z0-9_-]{1,128}$`).MatchString(wanted.Durable) {
		return registered{}, fmt.Errorf("%w: the durable must be 1 to 128 of A-Z, a-z, 0-9, _ and -", ErrRegistration)
	}
	if wanted.Look {
		return r.look(ctx, wanted)
	}
	first := false
	err = r.db.Tx(ctx, func(ctx context.Context, tx *database.Tx) error {
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
		if wanted.From != nil {
			first, err = requestReplay(ctx, tx, wanted.Name, *wanted.From)
		}
		return err
	})
	if err == nil && first {
		r.log.InfoContext(ctx, "events of the past requested", logs.Consumer, wanted.Name, "from", *wanted.From)
	}
	return registered{}, err
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
	return wanted, nil
}
