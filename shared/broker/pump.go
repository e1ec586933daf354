package broker

import (
	"time"

	"github.com/nats-io/nats.go"
	"github.com/pillarbox/pillarbox/shared/logs"
)

const (
	linger = time.Millisecond // of a pull that has little room
	// maxBytesInFlight is about what messages in flight may take of memory: pulls are for so many of the size
	// of the largest one that the pull before brought.
	maxBytesInFlight = 24 << 20
	assumedSize      = 1 << 20 // before the first
)

// pump pulls and hands out until the session has to end; the error says why.
func (s *subscription) pump(ses *session) error {
	status := s.parent.conn.NATS.StatusChanged(nats.RECONNECTING)
	defer s.parent.conn.NATS.RemoveStatusListener(status)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	lingered := false
	for {
		paused, changed := s.parent.gate.state()
		if paused {
			return errPaused
		}
		if err := s.ask(ses, timer, lingered); err != nil {
			return err
		}
		lingered = false
		select {
		case m := <-ses.msgs:
			isMessage, err := ses.receive(m)
			if err != nil {
				return err
			}
			s.works(ses)
			if isMessage {
				s.hand(m, ses.asked)
			}
		case <-s.flights.freed:
		case <-changed:
		case <-s.moved:
			return errMoved
		case <-status:
			return ErrDisconnected
		case <-timer.C:
			if ses.due > 0 {
				return errNoAnswer
			}
			lingered, ses.lingering = true, false
		case <-s.pull.Done():
			return s.pull.Err()
		}
	}
}

// ask pulls when no request stands and there is room. Acks of a group come one by one: a
// request for the first free place would bring a group of one message next, so it lingers until there
// is room worth a request. The timer is for the end of that, or for the request's answer.
func (s *subscription) ask(ses *session, timer *time.Timer, lingered bool) error {
	all := s.parent.config.MaxInFlight
	count, bytes := s.flights.count()
	free := min(all-count, (maxBytesInFlight-bytes)/max(ses.largest, 1))
	if ses.due > 0 || free <= 0 {
		return nil
	}
	if free < min(all, maxBytesInFlight/max(ses.largest, 1))/4 && !lingered {
		if !ses.lingering {
			ses.lingering = true
			timer.Reset(linger)
		}
		return nil
	}
	ses.lingering = false
	timer.Reset(pullExpiry + pullGrace)
	return ses.pull(free)
}

// hand gives a message to the handler's channel. The broker sent it after asked.
func (s *subscription) hand(m *nats.Msg, asked time.Time) {
	meta, err := m.Metadata()
	if err != nil { // an ack subject of a form that we do not know: without its parts we cannot answer
		s.parent.conn.log.ErrorContext(s.work, "message with unreadable ack subject left to the deadline", logs.Error, err)
		return
	}
	d := &delivery{
		size:  m.Size(),
		reply: m.Reply, gone: s.gone, received: time.Now(), conn: s.parent.conn, asked: asked, deadline: s.parent.config.AckWait,
	}
	msg := decode(s.work, m, meta, d)
	s.flights.add(s.work, d, msg, s.parent.config.NackDelay)
	select {
	case s.out <- msg:
	default: // more than was asked for: possible after a request that ended twice
		d.atOnce.Store(true)
		msg.Nack()
	}
}

// giveBack nacks a message that arrived too late to be handed out.
func (s *subscription) giveBack(m *nats.Msg) {
	if s.gone.Load() {
		return
	}
	if err := s.parent.conn.NATS.Publish(m.Reply, []byte("-NAK")); err != nil {
		s.parent.conn.log.DebugContext(s.work, "message not given back", logs.Error, err)
	}
}

// retract nacks what is buffered and nobody has begun.
func (s *subscription) retract() {
	for {
		select {
		case m := <-s.out:
			if d := deliveryOf(m); d != nil {
				d.atOnce.Store(true)
			}
			m.Nack()
		default:
			return
		}
	}
}
