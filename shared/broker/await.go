package broker

import (
	"context"
	"fmt"
	"time"
)

const awaitPoll = 25 * time.Millisecond

// AwaitReady waits until the server answers, and says what hindered it when ctx ends before.
func (c *Conn) AwaitReady(ctx context.Context) error {
	for {
		err := c.Ready(ctx)
		if err == nil {
			return nil
		}
		if last := c.NATS.LastError(); last != nil && !c.NATS.IsConnected() {
			err = fmt.Errorf("%w: %w", ErrDisconnected, last)
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(awaitPoll):
		}
	}
}
