package consumer_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// stream is a broker in memory: replicas compete for its messages, and what is
// nacked comes again.
type stream struct {
	redelivery time.Duration
	floor      atomic.Uint64

	mu      sync.Mutex // guards all below
	pending [][]byte
	changed chan struct{} // closed and replaced when pending grows
	acked   int
	nacked  int
}

func newStream() *stream {
	return &stream{redelivery: 2 * time.Millisecond, changed: make(chan struct{})}
}

func (s *stream) publish(bodies ...[]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending = append(s.pending, bodies...)
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *stream) take(most int) ([][]byte, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := min(most, len(s.pending))
	out := s.pending[:n:n]
	s.pending = s.pending[n:]
	return out, s.changed
}

func (s *stream) count(acked, nacked int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.acked += acked
	s.nacked += nacked
}

func (s *stream) counts() (acked, nacked, pending int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.acked, s.nacked, len(s.pending)
}

// subscriber is one replica's consumer.Subscriber on a stream.
type subscriber struct {
	stream   *stream
	inFlight int
	paused   atomic.Bool
	pauses   atomic.Int64
	handed   atomic.Int64 // messages put into the channel
	floors   atomic.Int64 // looks at the ack floor
	stop     chan struct{}
	once     sync.Once
	running  sync.WaitGroup
	taking   sync.Mutex // held while messages are put into a channel
	finished bool       // guarded by taking
}

func (s *stream) subscriber(inFlight int) *subscriber {
	return &subscriber{stream: s, inFlight: inFlight, stop: make(chan struct{})}
}

func (s *subscriber) Pause()  { s.paused.Store(true); s.pauses.Add(1) }
func (s *subscriber) Resume() { s.paused.Store(false) }

func (s *subscriber) Finish() {
	s.taking.Lock()
	defer s.taking.Unlock()
	s.finished = true
}

func (s *subscriber) AckFloor(context.Context, string) (uint64, error) {
	s.floors.Add(1)
	return s.stream.floor.Load(), nil
}

func (s *subscriber) Close() error {
	s.once.Do(func() { close(s.stop) })
	s.running.Wait()
	return nil
}

var errClosed = errors.New("closed")

func (s *subscriber) Subscribe(context.Context, string) (<-chan *message.Message, error) {
	select {
	case <-s.stop:
		return nil, errClosed
	default:
	}
	out := make(chan *message.Message, s.inFlight)
	s.running.Go(func() { s.run(out) })
	return out, nil
}

func (s *subscriber) run(out chan *message.Message) {
	defer close(out)
	var flights sync.WaitGroup
	var flying atomic.Int64
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for open := true; open; {
		var changed <-chan struct{}
		s.taking.Lock()
		if !s.paused.Load() && !s.finished {
			var bodies [][]byte
			bodies, changed = s.stream.take(s.inFlight - int(flying.Load()))
			for _, body := range bodies {
				m := message.NewMessage("", body)
				flying.Add(1)
				flights.Go(func() { s.settle(m); flying.Add(-1) })
				out <- m // never blocks: no more than inFlight are out
				s.handed.Add(1)
			}
		}
		s.taking.Unlock()
		select {
		case <-s.stop:
			open = false
		case <-changed:
		case <-tick.C:
		}
	}
	for open := true; open; {
		select {
		case m := <-out:
			m.Nack()
		default:
			open = false
		}
	}
	flights.Wait()
}

func (s *subscriber) settle(m *message.Message) {
	select {
	case <-m.Acked():
		s.stream.count(1, 0)
	case <-m.Nacked():
		s.stream.count(0, 1)
		select {
		case <-time.After(s.stream.redelivery):
		case <-s.stop:
		}
		s.stream.publish(m.Payload)
	}
}
