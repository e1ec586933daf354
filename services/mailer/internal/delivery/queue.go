package delivery

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/pillarbox/pillarbox/services/mailer/internal/ledger"
	"github.com/pillarbox/pillarbox/services/mailer/internal/sender"
	"github.com/pillarbox/pillarbox/shared/consumer"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/dispatch"
	"github.com/pillarbox/pillarbox/shared/failpoint"
)

// Queue is the effect of a mailer that hands its mails to a mail server: it queues the mail of each event in
// the transaction that advances the event's lane. What happens then is the sender's.
//
// A group is rendered before, so that an event of which no mail can be made fails here, with its order. While
// the mail server is down, or too many mails wait for it, every group is an outage: events wait with the broker.
type Queue struct {
	drafts dispatch.Strategy[*Draft]
	sender *sender.Sender
	log    *slog.Logger
}

// NewQueue does no I/O. drafts is a strategy over Drafting.
func NewQueue(drafts dispatch.Strategy[*Draft], s *sender.Sender, log *slog.Logger) *Queue {
	return &Queue{drafts: drafts, sender: s, log: log}
}

// Probe reports whether mails may be queued.
func (q *Queue) Probe(context.Context) error { return q.sender.Usable() }

// Prepare renders the mails of the due events.
func (q *Queue) Prepare(ctx context.Context, group consumer.Group) (consumer.Work, error) {
	if err := q.sender.Usable(); err != nil {
		return nil, consumer.AsOutage(err)
	}
	drafting, give := context.WithCancelCause(ctx)
	defer give(nil)
	drafts := make([]*Draft, len(group.Due))
	for i, event := range group.Due {
		drafts[i] = &Draft{event: event, give: give}
	}
	if err := verdict(q.drafts.HandleBatch(drafting, drafts)); err != nil {
		reportPanic(ctx, q.log, err)
		if ctx.Err() != nil {
			return nil, consumer.AsOutage(err) // the group's time is up: no mail is to blame
		}
		return nil, err
	}
	w := &queued{sender: q.sender, own: make(map[string]ledger.Outgoing, len(drafts))}
	for _, d := range drafts {
		w.own[d.event.ID] = outgoing(d)
	}
	return w, nil
}

func outgoing(d *Draft) ledger.Outgoing {
	o := ledger.Outgoing{
		Delivery: ledger.Delivery{
			ID: d.letter.Delivery, EventID: d.letter.EventID, OrderID: d.letter.OrderID, Version: d.letter.Version,
			Recipient: d.letter.Recipients[0], Template: d.letter.Template, MessageID: d.letter.MessageID,
		},
		Event: d.event.Raw,
	}
	for _, address := range d.letter.Recipients {
		o.Recipients = append(o.Recipients, ledger.Recipient{Address: address, State: ledger.Pending})
	}
	return o
}

// queued is one prepared group.
type queued struct {
	sender *sender.Sender
	own    map[string]ledger.Outgoing // by event id
}

// againPause is how long a mail that is tried again waits for the consumer to be through with its event.
const againPause = 2 * time.Second

// Apply queues the mails of the due events. An event that took effect and comes again changes nothing, unless the
// mail server had refused its mail: then it is a redrive, and the mail is tried again.
func (w *queued) Apply(ctx context.Context, tx *database.Tx, group consumer.Group) error {
	rows := make([]ledger.Outgoing, 0, len(group.Due))
	for _, event := range group.Due {
		row, ok := w.own[event.ID]
		if !ok {
			return errors.New("event is due but was not prepared")
		}
		rows = append(rows, row)
	}
	if err := ledger.Enqueue(ctx, tx, rows); errors.Is(err, ledger.ErrNoRow) {
		return consumer.AsPermanent(err)
	} else if err != nil {
		return err
	}
	raw := make(map[string][]byte, len(group.Duplicates))
	ids := make([]string, 0, len(group.Duplicates))
	for _, event := range group.Duplicates {
		ids = append(ids, event.ID)
		raw[event.ID] = event.Raw
	}
	if err := ledger.RequeueRefused(ctx, tx, ids, func(id string) []byte { return raw[id] }, againPause); err != nil {
		return err
	}
	failpoint.Hit("mailer.inserted")
	return nil
}

// Done lets the sender look.
func (w *queued) Done(context.Context) error {
	w.sender.Wake()
	return nil
}

// Discard has nothing to remove.
func (w *queued) Discard(context.Context) {}
