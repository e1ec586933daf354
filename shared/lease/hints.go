package lease

import (
	"fmt"

	"github.com/nats-io/nats.go"
)

// Hints carry the word that a lease was given back. They may be lost, doubled or late:
// a follower only looks earlier than it would have.
type Hints interface {
	// Tell says that holder from has left the lease. It does not wait.
	Tell(lease, from string)
	// Listen calls told for each word about the lease, our own ones included, until stop.
	Listen(lease string, told func(from string)) (stop func(), err error)
}

// SubjectPrefix, and the lease's name, is where Over publishes.
const SubjectPrefix = "pillarbox.lease."

// Over sends hints over a borrowed connection to the broker, without storing them.
func Over(conn *nats.Conn) Hints { return overNATS{conn} }

type overNATS struct{ conn *nats.Conn }

// Tell says nothing while the broker is away: a word about the present is of no use later.
func (h overNATS) Tell(lease, from string) {
	if h.conn.IsConnected() {
		// A hint that is lost costs a poll interval, so its errors are nobody's business.
		_ = h.conn.Publish(SubjectPrefix+lease, []byte(from))
	}
}

func (h overNATS) Listen(lease string, told func(from string)) (stop func(), err error) {
	hints, err := h.conn.Subscribe(SubjectPrefix+lease, func(m *nats.Msg) { told(string(m.Data)) })
	if err != nil {
		return nil, fmt.Errorf("subscribe to lease hints: %w", err)
	}
	return func() {
		_ = hints.Unsubscribe() // fails only on a closed connection, which has no subscriptions
	}, nil
}
