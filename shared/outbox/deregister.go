package outbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/logs"
)

// ErrNoStore means that no store of the stream is running, or that it is an older one.
var ErrNoStore = errors.New("no store answers")

func deregisterSubject(stream string) string { return "pillarbox.deregister." + stream }

// Deregister undoes Register: the purge of the stream waits for name no longer, and a replay for it ends. It
// reports whether name was registered. It asks once; a consumer that still runs would register again. One that
// comes back under the name later may ask for events of the past anew.
func Deregister(ctx context.Context, conn *broker.Conn, stream, name string) (was bool, err error) {
	body, err := json.Marshal(registration{Name: name})
	if err != nil {
		return false, fmt.Errorf("deregister %s: %w", name, err)
	}
	answer, err := request(ctx, conn, deregisterSubject(stream), body)
	if errors.Is(err, nats.ErrNoResponders) {
		err = ErrNoStore
	}
	if err != nil {
		return false, fmt.Errorf("deregister %s: %w", name, err)
	}
	return answer.Was, nil
}

// RemoveConsumer is Deregister for who has the store's database and no store running on it.
func RemoveConsumer(ctx context.Context, db *database.DB, name string) (was bool, err error) {
	err = db.Tx(ctx, func(ctx context.Context, tx *database.Tx) error {
		n, err := affected(tx.ExecContext(ctx, `DELETE FROM consumers WHERE name = $1`, name))
		if err != nil {
			return err
		}
		was = n > 0
		_, err = tx.ExecContext(ctx, `DELETE FROM replays WHERE name = $1`, name)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("remove consumer %s: %w", name, err)
	}
	return was, nil
}

// deregister is the store's part.
func (r *Relay) deregister(ctx context.Context, body []byte) (registered, error) {
	wanted, err := parseRegistration(body)
	if err != nil {
		return registered{}, err
	}
	was, err := RemoveConsumer(ctx, r.db, wanted.Name)
	if was {
		r.log.InfoContext(ctx, "consumer deregistered", logs.Consumer, wanted.Name)
	}
	return registered{Was: was}, err
}
