package broker

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// A pull request stands so long at the server. Each is answered: with messages, or with a status when
	// it expires; so one that is not answered tells that the durable, the stream or the connection is
	// gone, without heartbeats. It is also how long a stop in a cluster may wait, hence short.
	pullExpiry = time.Second
	pullGrace  = 2 * time.Second // for an answer on a busy machine

	drainTimeout = 2 * time.Second
)

var (
	errNoAnswer  = errors.New("no answer to a pull request")
	errNoDurable = errors.New("durable is gone")
)

// session is one subject on which the messages of one durable arrive. There is never more than one
// pull request standing, for as many messages as there is room for, so nothing arrives
// that has no place, and one request brings a whole batch.
type session struct {
	conn *Conn
	durable
	sub    *nats.Subscription
	msgs   chan *nats.Msg
	closed chan struct{} // when the last message is in msgs
	due    int           // messages that the standing request may still bring
	// largest is the size of the largest message that the latest fruitful request has brought, fresh
	// whether the standing one has brought none yet.
	largest int
	fresh   bool
	asked   time.Time // when it was sent
	// lingering: a pull waits for more room.
	lingering bool
	// answered: the durable has answered a pull, so this session works.
	answered bool
}

func newSession(c *Conn, d durable, room int) (*session, error) {
	s := &session{
		conn: c, durable: d,
		largest: assumedSize,
		msgs:    make(chan *nats.Msg, room+16), // a request's messages and statuses; the client drops what does not fit
		closed:  make(chan struct{}),
	}
	var err error
	if s.sub, err = c.NATS.ChanSubscribe(c.NATS.NewInbox(), s.msgs); err != nil {
		return nil, fmt.Errorf("subscribe for pulls: %w", err)
	}
	// The client calls it twice when Drain and Unsubscribe meet.
	closeOnce := sync.OnceFunc(func() { close(s.closed) })
	s.sub.SetClosedHandler(func(string) { closeOnce() })
	return s, nil
}

// pull asks for n messages.
func (s *session) pull(n int) error {
	request, err := json.Marshal(struct {
		Expires time.Duration `json:"expires"`
		Batch   int           `json:"batch"`
	}{pullExpiry, n})
	if err != nil {
		return fmt.Errorf("encode pull request: %w", err)
	}
	s.asked = time.Now()
	subject := "$JS.API.CONSUMER.MSG.NEXT." + s.stream + "." + s.name
	if err := s.conn.NATS.PublishRequest(subject, s.sub.Subject, request); err != nil {
		return fmt.Errorf("pull: %w", err)
	}
	s.due, s.fresh = n, true
	return nil
}

// receive looks at what arrived: a message of the stream, or a word about the standing request
// (then isMessage is false). An error ends the session.
func (s *session) receive(m *nats.Msg) (isMessage bool, err error) {
	// By the reply subject, not by the headers: a message may bring any header.
	if strings.HasPrefix(m.Reply, "$JS.ACK.") {
		if s.fresh {
			s.largest, s.fresh = 0, false
		}
		s.largest = max(s.largest, m.Size())
		s.due = max(s.due-1, 0)
		s.answered = true
		return true, nil
	}
	switch status := m.Header.Get("Status"); status {
	case "100": // still there
		return false, nil
	case "404", "408": // nothing more came before it expired
		s.due = 0
		s.answered = true
		return false, nil
	case "503":
		return false, errNoDurable
	default:
		return false, fmt.Errorf("pull ended: %s %s", status, m.Header.Get("Description"))
	}
}

// end closes the session without losing a message to the ack deadline: what is on its way still
// arrives, and goes to each.
func (s *session) end(each func(*nats.Msg)) {
	// A server on its own hands a message whose receiver has gone to the next at once. In a cluster
	// the message may have left the durable's server when the news of our leaving gets there, so let the
	// standing request run out first.
	if s.due > 0 && s.conn.NATS.ConnectedClusterName() != "" {
		s.runOut(each)
	}
	if !s.conn.NATS.IsConnected() || s.sub.Drain() != nil {
		_ = s.sub.Unsubscribe() // an error says that it is unsubscribed already
	}
	timeout := time.NewTimer(drainTimeout)
	defer timeout.Stop()
	select {
	case <-s.closed:
	case <-timeout.C:
		_ = s.sub.Unsubscribe()
	}
	for {
		select {
		case m := <-s.msgs:
			if isMessage, _ := s.receive(m); isMessage {
				each(m)
			}
		default:
			return
		}
	}
}

func (s *session) runOut(each func(*nats.Msg)) {
	timeout := time.NewTimer(pullExpiry + pullGrace)
	defer timeout.Stop()
	for s.due > 0 {
		select {
		case m := <-s.msgs:
			isMessage, err := s.receive(m)
			if isMessage {
				each(m)
			}
			if err != nil {
				return
			}
		case <-timeout.C:
			return
		}
	}
}
