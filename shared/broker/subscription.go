package broker

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/cenkalti/backoff/v5"
	"github.com/nats-io/nats.go"
	"github.com/pillarbox/pillarbox/shared/logs"
)

const (
	buildTimeout    = 5 * time.Second // of finding or creating the durable
	registerTimeout = 5 * time.Second // of OnDurable
	backoffMin      = 50 * time.Millisecond
	backoffMax      = time.Second
	watchInterval   = time.Second     // of looking whether the stream was made anew or its generation rose
	quiet           = time.Second     // trouble shorter than this is not logged
	complainEvery   = 5 * time.Second // then one line

	topicKey = "topic" // of log lines
)

var (
	errMoved  = errors.New("stream was made anew or its generation rose")
	errPaused = errors.New("paused")
)

// subscription is one Subscribe call. One goroutine (run) owns the session and out; a second extends
// deadlines, a third watches the stream; each message in flight has one that waits for its ack.
//
//	build durable ──► session: pull, hand out ──► end session ──► build … until stop ──► settle, close
//	      ▲                                            │ (pause: wait for Resume)
//	      └──────────────── backoff ◄──────────────────┘
type subscription struct {
	parent  *Subscriber
	topic   string
	group   string
	out     chan *message.Message
	flights *flights

	stop    context.Context // ends with Subscribe's context or Close: what is buffered goes back
	pull    context.Context // ends with stop or Finish: no more pulls
	release context.CancelFunc
	work    context.Context // parent of message contexts: ends when the time for handlers is over
	endWork context.CancelFunc

	moved   chan struct{} // the watcher saw another stream or generation
	known   durable       // that was last announced by OnDurable
	gone    *atomic.Bool  // whether the stream of the latest deliveries was made anew since
	backoff *backoff.ExponentialBackOff
	trouble time.Time             // since when nothing works; zero: it works
	begun   bool                  // there was a session once
	hinders atomic.Pointer[error] // what Working reports; nil: nothing
	said    time.Time             // when that was last logged

	mu      sync.Mutex // guards watched
	watched durable    // what the watcher compares with; zero: nothing
}

func newSubscription(ctx context.Context, parent *Subscriber, topic string) *subscription {
	s := &subscription{
		parent: parent, topic: topic, group: parent.config.groupName(),
		out:     make(chan *message.Message, parent.config.MaxInFlight),
		flights: newFlights(parent.conn),
		moved:   make(chan struct{}, 1),
		gone:    new(atomic.Bool),
		backoff: backoff.NewExponentialBackOff(),
	}
	s.backoff.InitialInterval, s.backoff.MaxInterval = backoffMin, backoffMax
	s.hinders.Store(&errNotYet)
	s.work, s.endWork = context.WithCancel(context.WithoutCancel(ctx))
	var cancel context.CancelFunc
	s.stop, cancel = context.WithCancel(ctx)
	forget := context.AfterFunc(parent.stopping, cancel)
	var cancelPull context.CancelFunc
	s.pull, cancelPull = context.WithCancel(s.stop)
	forgetPull := context.AfterFunc(parent.finishing, cancelPull)
	s.release = func() { forget(); forgetPull(); cancel(); cancelPull() }
	return s
}

// run pulls until stop, whatever happens, and closes out when everything is settled.
func (s *subscription) run() {
	var helpers sync.WaitGroup
	done := make(chan struct{})
	helpers.Go(func() { s.keepAlive(done) })
	helpers.Go(func() { s.watch(done) })
	for s.awaitResume() {
		err := s.pullUntil()
		if s.pull.Err() == nil && !errors.Is(err, errPaused) {
			s.complain(err)
			s.rest()
		}
	}
	s.parent.pulling.Done()
	<-s.stop.Done()
	s.shut()
	close(done)
	helpers.Wait()
	s.removeOwn()
	s.parent.conn.flush() // acks and nacks are with the server when Close returns
	s.release()
	close(s.out)
}

// awaitResume waits while the subscriber is paused; false means that pulling is over.
func (s *subscription) awaitResume() bool {
	for {
		paused, changed := s.parent.gate.state()
		if !paused || s.pull.Err() != nil {
			return s.pull.Err() == nil
		}
		select {
		case <-changed:
		case <-s.pull.Done():
		}
	}
}

// pullUntil builds the durable and a session on it and hands out messages until something ends that.
func (s *subscription) pullUntil() error {
	if !s.parent.conn.NATS.IsConnected() {
		return ErrDisconnected
	}
	d, err := s.build()
	if err != nil {
		return err
	}
	ses, err := newSession(s.parent.conn, d, s.parent.config.MaxInFlight)
	if err != nil {
		return err
	}
	s.begin()
	s.watchFor(d)
	err = s.pump(ses)
	s.watchFor(durable{})
	// The session ends before anything is given back, or it would come back to us.
	var late []*nats.Msg
	ses.end(func(m *nats.Msg) { late = append(late, m) })
	if errors.Is(err, errPaused) || errors.Is(err, errMoved) || s.stop.Err() != nil {
		s.retract()
	}
	for _, m := range late {
		if s.finishing() {
			s.hand(m, ses.asked)
			continue
		}
		s.giveBack(m)
	}
	return err
}

// finishing: no more pulls, but what is here is still for the readers.
func (s *subscription) finishing() bool { return s.pull.Err() != nil && s.stop.Err() == nil }

// build finds or creates the durable and announces it when it is another than before.
func (s *subscription) build() (durable, error) {
	ctx, cancel := context.WithTimeout(s.pull, buildTimeout)
	defer cancel()
	d, err := s.ensureDurable(ctx)
	if err != nil {
		return durable{}, err
	}
	if !s.known.streamMade.Equal(d.streamMade) {
		s.gone.Store(true)
		s.gone = new(atomic.Bool)
	}
	if s.known.same(d) {
		return d, nil
	}
	if s.parent.config.OnDurable != nil {
		ctx, cancel := context.WithTimeout(s.pull, registerTimeout)
		defer cancel()
		s.parent.config.OnDurable(ctx, d.name)
	}
	s.known = d
	s.parent.conn.log.InfoContext(s.work, "subscribed", logs.Consumer, d.name, topicKey, s.topic)
	// Last, so that a registered durable is never missing; a failure leaves only rubbish.
	if err := s.removeOlder(ctx, d); err != nil {
		s.parent.conn.log.WarnContext(s.work, "old durables not removed", logs.Consumer, d.name, logs.Error, err)
	}
	return d, nil
}

// shut waits for the handlers up to the deadline, and then settles without them.
func (s *subscription) shut() {
	s.retract()
	deadline := time.NewTimer(s.parent.config.CloseTimeout)
	defer deadline.Stop()
	s.flights.wait(deadline.C)
	s.endWork()
	s.flights.settling.Wait()
	s.retract() // settled by now: nobody shall begin them after this
}

// removeOwn deletes the durable of a subscription without a group.
func (s *subscription) removeOwn() {
	if s.parent.config.Group != "" || s.known.name == "" || !s.parent.conn.NATS.IsConnected() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	if err := s.deleteDurable(ctx, s.known.stream, s.known.name); err != nil {
		s.parent.conn.log.WarnContext(s.work, "own durable not removed", logs.Consumer, s.known.name, logs.Error, err)
	}
}
