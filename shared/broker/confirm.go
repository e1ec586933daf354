package broker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// ErrNotOurs means that a message was confirmed after its deadline, so another replica may have been given it.
var ErrNotOurs = errors.New("acknowledged after its deadline")

// Confirm acknowledges a message that Subscribe handed out and waits until the broker has written that down. When it
// returns nil, the message comes to nobody again and was given to nobody else meanwhile, however long this process was frozen.
// After any error it may come again, or be lost: the caller nacks it.
//
// Beyond that promise are a broker that loses what it knew of its consumers (power, an older copy), and whoever publishes
// the event again.
func Confirm(ctx context.Context, m *message.Message) error {
	d := deliveryOf(m)
	if d == nil { // of another subscriber, whose ack is all there is
		m.Ack()
		return nil
	}
	if d.gone.Load() {
		return errMoved
	}
	if d.late() { // and asking would take it from the one who may have it now
		return ErrNotOurs
	}
	if _, err := d.conn.NATS.RequestWithContext(ctx, d.reply, []byte("+ACK")); err != nil {
		return fmt.Errorf("confirm message %d: %w", d.info.Sequence, err)
	}
	d.confirmed.Store(true)
	m.Ack()
	if d.late() {
		return ErrNotOurs
	}
	return nil
}

// late reports whether the broker may have given the message to somebody else. It counts the deadline from when it sent
// the message, which was after it was asked; that it was told of work under way since cannot be relied on, since it does
// not answer. By the monotonic and by the wall clock: the first stands still while a machine is suspended.
func (d *delivery) late() bool {
	now := time.Now()
	return now.Sub(d.asked) >= d.deadline || now.Round(0).Sub(d.asked.Round(0)) >= d.deadline
}
