package delivery

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/pillarbox/pillarbox/services/mailer/internal/letter"
	"github.com/pillarbox/pillarbox/services/mailer/internal/pickup"
	"github.com/pillarbox/pillarbox/shared/consumer"
	"github.com/pillarbox/pillarbox/shared/dispatch"
	"github.com/pillarbox/pillarbox/shared/logs"
)

// Draft is one mail of a group on its way to the staging folder, or into the queue for the mail server: the
// part of the work that is done event by event.
type Draft struct {
	event   consumer.Event
	staging *pickup.Staging         // nil: the mail is only rendered
	give    context.CancelCauseFunc // gives up the group

	letter letter.Letter // without its Data
	name   string        // in the staging folder
}

// Key is the order, for strategies that spread by key.
func (d *Draft) Key() string { return d.event.Subject }

// MadeAt is when the order changed.
func (d *Draft) MadeAt() time.Time { return d.event.Time }

// errGivenUp is why the rest of a group is not drafted: one failure fails the
// whole group, which then comes again in parts.
var errGivenUp = errors.New("another mail of the group failed")

// Drafting returns the handler that renders a mail and, for the pickup folder, writes it into the staging folder.
func Drafting(r *letter.Renderer) dispatch.Handler[*Draft] {
	buffers := sync.Pool{New: func() any { return new(bytes.Buffer) }}
	return func(_ context.Context, d *Draft) error {
		buffer := buffers.Get().(*bytes.Buffer)
		defer buffers.Put(buffer)
		buffer.Reset()
		err := d.write(r, buffer)
		if err != nil {
			d.give(errGivenUp)
		}
		return err
	}
}

func (d *Draft) write(r *letter.Renderer, buffer *bytes.Buffer) (err error) {
	if d.letter, err = r.RenderTo(buffer, d.event.Event); err != nil {
		return consumer.AsPermanent(err)
	}
	data := d.letter.Data
	d.letter.Data = nil
	if d.staging == nil {
		return nil
	}
	if d.name, err = d.staging.Write(pickup.Mail{Delivery: d.letter.Delivery, Data: data}); err != nil {
		return consumer.AsOutage(err)
	}
	return nil
}

// stage renders and stages the mails of the due events, or leaves none behind.
func (e *Effect) stage(ctx context.Context, box *pickup.Box, due []consumer.Event) ([]*Draft, error) {
	drafting, give := context.WithCancelCause(ctx)
	defer give(nil)
	drafts := make([]*Draft, len(due))
	var failed error
	err := box.Stage(func(s *pickup.Staging) error {
		for i, event := range due {
			drafts[i] = &Draft{event: event, staging: s, give: give}
		}
		failed = verdict(e.drafts.HandleBatch(drafting, drafts))
		return failed
	})
	if err == nil {
		return drafts, nil
	}
	reportPanic(ctx, e.log, failed)
	if failed == nil || ctx.Err() != nil {
		return nil, consumer.AsOutage(err) // of the folder, or the group's time is up: no mail is to blame
	}
	return nil, err // has the class of the mail that failed
}

// reportPanic logs the stack of a draft's panic: its error goes on without.
func reportPanic(ctx context.Context, log *slog.Logger, err error) {
	var panicked *dispatch.PanicError
	if errors.As(err, &panicked) {
		log.ErrorContext(ctx, "a mail's draft panicked", logs.Error, err, "stack", string(panicked.Stack))
	}
}

// verdict is the error of a group: an outage if there is one, since it says
// nothing against any of the mails, otherwise the first failure of a mail.
func verdict(errs []error) error {
	var first, undone error
	for _, err := range errs {
		switch {
		case err == nil:
		case errors.Is(err, errGivenUp), errors.Is(err, dispatch.ErrPredecessor), errors.Is(err, dispatch.ErrNoWorker):
			undone = consumer.AsOutage(err)
		case consumer.Classify(err) == consumer.Outage:
			return err
		case first == nil:
			first = err
		}
	}
	if first == nil {
		first = undone
	}
	return first
}
