package queue

import (
	"context"
	"errors"
	"time"

	"github.com/pillarbox/pillarbox/shared/broker"
)

const reopenPause = 50 * time.Millisecond

// source is where receive takes messages from: over lost connections to a NATS server, and when the command ends
// that had opened the folder.
type source struct {
	w        *work
	at       broker.ConsumerInfo
	receiver *broker.Receiver
}

func (s *source) next(ctx context.Context) (broker.Received, error) {
	for {
		if s.receiver == nil {
			s.receiver = s.w.NewReceiver(s.at)
		}
		m, err := s.receiver.Next(ctx)
		if !errors.Is(err, broker.ErrDisconnected) {
			return m, err
		}
		s.close()
		if err := s.w.reopen(ctx); err != nil {
			return m, err
		}
		select {
		case <-ctx.Done():
			return m, context.Cause(ctx)
		case <-time.After(reopenPause):
		}
	}
}

func (s *source) close() {
	if s.receiver != nil {
		s.receiver.Close()
		s.receiver = nil
	}
}
