package outbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/logs"
)

const (
	// registerLine is the time between two log lines while the store does not answer.
	registerLine = 30 * time.Second
	// followEvery is how often the store is asked how far a replay is.
	followEvery = time.Second
	// horizonEvery is how often the store is asked for its horizon: a restart may have changed it.
	horizonEvery = 10 * time.Minute
	horizonFirst = 5 * time.Second // until it has answered
)

// Registrar tells the store through which durable a consumer reads, so that the
// stream keeps what it has not acknowledged, and asks for events of the past on its behalf. It goes on trying while
// the store is down; events are consumed meanwhile, and the stream keeps the last days anyway.
type Registrar struct {
	conn         *broker.Conn
	stream, name string
	log          *slog.Logger
	next         chan string // capacity 1: the durable to register, the latest only

	mu        sync.Mutex    // guards all below
	from      *time.Time    // what was asked for
	announced int           // how many durables were
	complete  bool          // all that was asked for is handled, as of the durable announced last
	horizon   time.Duration // of the store, as it said last; 0: it has not
	asked     time.Time     // when it said so, or was asked in vain
}

// NewRegistrar returns the registrar of the consumer called name.
func NewRegistrar(conn *broker.Conn, stream, name string, log *slog.Logger) *Registrar {
	return &Registrar{conn: conn, stream: stream, name: name, log: log, next: make(chan string, 1)}
}

// Ask wants the events since from over events.ReplayTopic(name), besides what the stream gives. The first one under
// a name counts, whichever process asks. It must be called before the first Announce.
func (r *Registrar) Ask(from time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.from = &from
}

// Complete reports whether all that was asked for was published, and acknowledged by the durable: no older event
// than those seen can come any more. It is true when nothing was asked for.
func (r *Registrar) Complete() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.from == nil || r.complete
}

// Announce takes the name of a durable; it is a broker.SubscriberConfig.OnDurable. It never blocks.
func (r *Registrar) Announce(_ context.Context, durable string) {
	// Another durable or another stream: what was asked for may have to come again.
	r.mu.Lock()
	r.announced++
	r.complete = false
	r.mu.Unlock()
	r.offer(durable)
}

func (r *Registrar) offer(durable string) {
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

// Run registers what is announced, and follows the replay, until ctx ends.
func (r *Registrar) Run(ctx context.Context) {
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	following := ""
	for {
		select {
		case <-ctx.Done():
			return
		case durable := <-r.next:
			following = ""
			if r.register(ctx, durable) && !r.Complete() {
				following = durable
			}
		case <-tick.C:
		}
		if following == "" {
			r.askHorizon(ctx)
		}
		if following != "" && r.follow(ctx, following) {
			following = ""
		}
	}
}

func (r *Registrar) wanted(durable string) registration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return registration{Name: r.name, Durable: durable, From: r.from}
}

func (r *Registrar) register(ctx context.Context, durable string) (done bool) {
	attempts, cancel := context.WithTimeout(ctx, registerLine)
	defer cancel()
	r.mu.Lock()
	r.complete = false
	r.mu.Unlock()
	answer, err := register(attempts, r.conn, r.stream, r.wanted(durable))
	switch {
	case err == nil:
		r.hear(answer)
		return true
	case ctx.Err() != nil:
	case errors.Is(err, ErrRegistration):
		r.log.ErrorContext(ctx, "store refuses to register the consumer", logs.Consumer, durable, logs.Error, err)
	default:
		r.log.WarnContext(ctx, "consumer is not registered with the store yet", logs.Consumer, durable, logs.Error, err)
		select {
		case r.next <- durable: // once more
		default: // a newer name waits
		}
	}
	return false
}

// follow asks how far the replay is, and says so when the durable has acknowledged all of it. It reports whether
// there is nothing more to ask.
func (r *Registrar) follow(ctx context.Context, durable string) bool {
	r.mu.Lock()
	announced := r.announced
	r.mu.Unlock()
	now, err := r.look(ctx, durable)
	if err != nil {
		if ctx.Err() == nil {
			r.log.DebugContext(ctx, "progress of the replay unknown", logs.Consumer, durable, logs.Error, err)
		}
		return false
	}
	if now == nil {
		// The store forgot the name, or is of a release before replays: then this is repeated until it is another.
		r.register(ctx, durable)
		return false
	}
	if now.State != replayHandled {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.complete = r.announced == announced
	r.log.InfoContext(ctx, "events of the past are complete", logs.Consumer, durable)
	return true
}

// look returns how far the replay is.
func (r *Registrar) look(ctx context.Context, durable string) (*progress, error) {
	wanted := r.wanted(durable)
	wanted.Look = true
	now, err := r.request(ctx, wanted)
	if err != nil || now == nil || now.State != replayPublished {
		return now, err
	}
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	consumer, err := r.conn.JS.Consumer(ctx, r.stream, durable)
	if err != nil {
		return nil, fmt.Errorf("look up durable %s: %w", durable, err)
	}
	if consumer.CachedInfo().AckFloor.Stream < now.Sequence {
		return now, nil
	}
	wanted.Acknowledged = now.Number
	return r.request(ctx, wanted)
}

func (r *Registrar) request(ctx context.Context, wanted registration) (*progress, error) {
	body, err := json.Marshal(wanted)
	if err != nil {
		return nil, fmt.Errorf("encode registration: %w", err)
	}
	answer, err := request(ctx, r.conn, registerSubject(r.stream), body)
	if err == nil {
		r.hear(answer)
	}
	return answer.Replay, err
}

// hear takes down the horizon.
func (r *Registrar) hear(answer registered) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.horizon, r.asked = time.Duration(answer.HorizonSeconds)*time.Second, time.Now()
}

// Horizon is how far back the store can publish events again, as it said last; false until it has said so. A store of
// before does not say it.
func (r *Registrar) Horizon() (time.Duration, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.horizon, r.horizon > 0
}

// askHorizon asks again when the last answer is old. A store that is away is asked later.
func (r *Registrar) askHorizon(ctx context.Context) {
	r.mu.Lock()
	pause := horizonEvery
	if r.horizon == 0 {
		pause = horizonFirst
	}
	due := time.Since(r.asked) >= pause
	if due {
		r.asked = time.Now()
	}
	r.mu.Unlock()
	if !due {
		return
	}
	wanted := r.wanted(r.name)
	wanted.From, wanted.Look = nil, true
	if _, err := r.request(ctx, wanted); err != nil && ctx.Err() == nil {
		r.log.DebugContext(ctx, "horizon of the store unknown", logs.Error, err)
	}
}
