package broker

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/pillarbox/pillarbox/shared/logs"
)

// delivery is one message in flight: received and not settled.
type delivery struct {
	info     Info
	size     int
	reply    string       // where the broker wants the ack; it names the durable of this delivery
	gone     *atomic.Bool // the stream that it is from was made anew
	received time.Time
	cancel   context.CancelFunc // ends the message's context
	// atOnce: the nack is our own (nobody tried the message), so it may come again at once.
	atOnce atomic.Bool

	conn      *Conn
	asked     time.Time     // when the request was sent that brought the message
	deadline  time.Duration // the durable's AckWait
	confirmed atomic.Bool   // the broker has said that it has the ack
}

// flights are the deliveries in flight of one subscription. Their deadlines are extended by one ticker.
type flights struct {
	conn  *Conn
	freed chan struct{} // signalled when a delivery is settled

	mu    sync.Mutex // guards all and bytes
	all   map[*delivery]struct{}
	bytes int
	// settling counts the goroutines that wait for acks.
	settling sync.WaitGroup
}

func newFlights(c *Conn) *flights {
	return &flights{conn: c, freed: make(chan struct{}, 1), all: map[*delivery]struct{}{}}
}

// add puts d in flight and settles it with the broker when its handler, or the end of work, decides.
func (f *flights) add(work context.Context, d *delivery, m *message.Message, nackDelay time.Duration) {
	f.mu.Lock()
	f.all[d] = struct{}{}
	f.bytes += d.size
	f.mu.Unlock()
	f.settling.Go(func() {
		select {
		case <-m.Acked():
			f.send(d, "+ACK")
		case <-m.Nacked():
			f.nack(d, nackDelay)
		case <-work.Done():
			f.lastWord(d, m)
		}
		d.cancel()
		f.remove(d)
	})
}

// lastWord settles d when the time for handlers is over. A handler that decided in the same
// moment is heard.
func (f *flights) lastWord(d *delivery, m *message.Message) {
	select {
	case <-m.Acked():
		f.send(d, "+ACK")
	default:
		f.nack(d, 0)
	}
}

func (f *flights) nack(d *delivery, delay time.Duration) {
	if delay <= 0 || d.atOnce.Load() {
		f.send(d, "-NAK")
		return
	}
	f.send(d, fmt.Sprintf(`-NAK {"delay": %d}`, delay.Nanoseconds()))
}

// send tells the broker a word about d. During a short loss of the connection the client keeps it and
// sends it later; if it is lost all the same, the message comes again after the deadline.
func (f *flights) send(d *delivery, word string) {
	// A stream that was made anew may have a durable of the same name: this word would
	// count for another message there.
	if d.gone.Load() || d.confirmed.Load() {
		return
	}
	if err := f.conn.NATS.Publish(d.reply, []byte(word)); err != nil {
		f.conn.log.Debug("message not settled", logs.Sequence, d.info.Sequence, logs.Error, err)
	}
}

func (f *flights) remove(d *delivery) {
	f.mu.Lock()
	delete(f.all, d)
	f.bytes -= d.size
	f.mu.Unlock()
	select {
	case f.freed <- struct{}{}:
	default:
	}
}

func (f *flights) count() (messages, bytes int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.all), f.bytes
}

// extend tells the broker that deliveries older than age are still being worked on.
func (f *flights) extend(age time.Duration) {
	now := time.Now()
	f.mu.Lock()
	old := make([]*delivery, 0, len(f.all))
	for d := range f.all {
		if now.Sub(d.received) >= age {
			old = append(old, d)
		}
	}
	f.mu.Unlock()
	if !f.conn.NATS.IsConnected() {
		return // words about the present are of no use later
	}
	for _, d := range old {
		f.send(d, "+WPI")
	}
}

// wait returns when nothing is in flight or until ends.
func (f *flights) wait(until <-chan time.Time) {
	for {
		if n, _ := f.count(); n == 0 {
			return
		}
		select {
		case <-f.freed:
		case <-until:
			return
		}
	}
}
