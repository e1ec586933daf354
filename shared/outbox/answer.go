package outbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/pillarbox/pillarbox/shared/logs"
)

// answers is the responder of one replica.
type answers struct {
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu   sync.Mutex // guards errs
	errs []error
}

// answerConsumers answers registrations and deregistrations until stop. Replicas share the requests.
func (r *Relay) answerConsumers(ctx context.Context) (*answers, error) {
	ctx, cancel := context.WithCancel(ctx)
	a := &answers{cancel: cancel}
	for subject, do := range map[string]func(context.Context, []byte) (registered, error){
		registerSubject(r.c.Stream): r.register, deregisterSubject(r.c.Stream): r.deregister,
	} {
		requests, err := r.conn.NATS.QueueSubscribeSync(subject, queueGroup)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("subscribe to %s: %w", subject, err), a.stop())
		}
		a.done.Go(func() { a.serve(ctx, requests, func(m *nats.Msg) { r.answer(ctx, m, do) }) })
	}
	return a, nil
}

func (a *answers) serve(ctx context.Context, requests *nats.Subscription, answer func(*nats.Msg)) {
	for ctx.Err() == nil {
		request, err := requests.NextMsgWithContext(ctx)
		if errors.Is(err, nats.ErrSlowConsumer) {
			continue // some requests were dropped, and will be asked again
		}
		if err != nil {
			break
		}
		answer(request)
	}
	if err := requests.Unsubscribe(); !errors.Is(err, nats.ErrConnectionClosed) && !errors.Is(err, nats.ErrBadSubscription) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.errs = append(a.errs, err)
	}
}

func (a *answers) stop() error {
	a.cancel()
	a.done.Wait()
	return errors.Join(a.errs...)
}

func (r *Relay) answer(ctx context.Context, request *nats.Msg, do func(context.Context, []byte) (registered, error)) {
	ctx, cancel := context.WithTimeout(ctx, registerTimeout)
	defer cancel()
	reply, err := do(ctx, request.Data)
	if err != nil {
		reply = registered{Error: err.Error(), Retry: !errors.Is(err, ErrRegistration)}
		if reply.Retry {
			reply.Error = "the store cannot write it now"
		}
		r.log.WarnContext(ctx, "list of consumers not changed", logs.Error, err)
	}
	reply.OK = err == nil
	reply.HorizonSeconds = int64(r.c.Horizon.Seconds())
	body, err := json.Marshal(reply)
	if err == nil {
		err = request.Respond(body)
	}
	if err != nil && ctx.Err() == nil {
		r.log.WarnContext(ctx, "registration not answered", logs.Error, err)
	}
}
