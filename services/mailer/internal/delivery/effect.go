// Package delivery is the mailer's effect: it stages the mail of each event,
// commits the row that names the file, and publishes the file, in this order.
//
// It promises one file per event, whoever handles it and however often; that an
// order's mails appear in version order; and that Done, and so the
// acknowledgement, comes only after a power loss could take nothing back. Its
// consumer gives it each order's events in version order under the lane's lock.
//
// What a crash leaves, by step:
//
//	after staging      loose files; the event comes again and gets new ones, Sweeper removes the old
//	after the commit   rows whose files are staged; whoever next handles the order, or Sweeper, publishes
//	after the renames  the same, with the files gone: the next one only fsyncs and acknowledges
//	before accepted    rows in state staged whose files are gone; Sweeper marks them
package delivery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/pillarbox/pillarbox/services/mailer/internal/ledger"
	"github.com/pillarbox/pillarbox/services/mailer/internal/pickup"
	"github.com/pillarbox/pillarbox/shared/consumer"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/dispatch"
	"github.com/pillarbox/pillarbox/shared/failpoint"
	"github.com/pillarbox/pillarbox/shared/logs"
)

// freshFor is how long staged files may wait for their transaction. It is far
// below the age at which Sweeper removes files that no row names, so that a
// process thawed after an hour cannot commit the name of a removed file.
const freshFor = time.Minute

// errStale is why a group is prepared anew.
var errStale = errors.New("staged too long ago")

// Effect implements consumer.Effect.
type Effect struct {
	drafts   dispatch.Strategy[*Draft]
	folder   *Folder
	accepter *Accepter
	metrics  *Metrics
	log      *slog.Logger
	now      func() time.Time
	budget   Budget // nil: unlimited
}

// NewEffect does no I/O. How the mails of a group are spread over workers is up
// to drafts, a strategy over Drafting.
func NewEffect(drafts dispatch.Strategy[*Draft], f *Folder, a *Accepter, m *Metrics, log *slog.Logger, now func() time.Time) *Effect {
	return &Effect{drafts: drafts, folder: f, accepter: a, metrics: m, log: log, now: now}
}

// Budget is the rate at which a transport may be given mails, in all replicas together (pace.Pacer).
type Budget interface {
	// Wait returns nil when n mails may pass at once.
	Wait(ctx context.Context, n int) error
	// Most is the largest n.
	Most() int
}

// Paced returns the effect under a budget. A group's share is taken before its mails are made:
// outside of the transaction, and so that none of them grows old in waiting. A group that fails has
// spent its share; what a crash left staged was paid for by its owner.
func (e *Effect) Paced(b Budget) *Effect {
	paced := *e
	paced.budget = b
	return &paced
}

// share waits until n mails may pass. That there is none in time says nothing against the mails.
func (e *Effect) share(ctx context.Context, n int) error {
	for e.budget != nil && n > 0 {
		k := min(n, e.budget.Most()) // groups are cut to fit; this one was not
		if err := e.budget.Wait(ctx, k); err != nil {
			return consumer.AsOutage(fmt.Errorf("rate of mails: %w", err))
		}
		n -= k
	}
	return nil
}

// Probe reports whether the pickup folder is the right one and takes files.
func (e *Effect) Probe(ctx context.Context) error { return e.folder.Prove(ctx) }

// Prepare renders and stages the mails of the due events.
func (e *Effect) Prepare(ctx context.Context, group consumer.Group) (consumer.Work, error) {
	box, err := e.folder.Box(ctx)
	if err != nil {
		return nil, consumer.AsOutage(err)
	}
	if err := e.share(ctx, len(group.Due)); err != nil {
		return nil, err
	}
	w := &work{effect: e, box: box, own: make(map[string]ledger.Delivery, len(group.Due)), staged: e.now()}
	drafts, err := e.stage(ctx, box, group.Due)
	if err != nil {
		return nil, err
	}
	for _, d := range drafts {
		w.names = append(w.names, d.name)
		w.own[d.event.ID] = ledger.Delivery{
			ID: d.letter.Delivery, EventID: d.letter.EventID, OrderID: d.letter.OrderID, Version: d.letter.Version,
			Recipient: d.letter.Recipients[0], Template: d.letter.Template, StagedName: d.name, MessageID: d.letter.MessageID,
		}
	}
	if len(w.names) > 0 {
		failpoint.Hit("mailer.staged")
	}
	return w, nil
}

// work is one prepared group.
type work struct {
	effect *Effect
	box    *pickup.Box
	own    map[string]ledger.Delivery // what Prepare staged, by event id
	names  []string                   // of all the files it staged
	staged time.Time
	// publish is what the committed transaction left to do: the group's own rows and those that others left.
	publish []ledger.Delivery
}

// Apply writes the rows of the due events and reads what is to be published:
// also what a crashed or frozen replica left of the same orders, since its
// mails must appear before ours.
func (w *work) Apply(ctx context.Context, tx *database.Tx, group consumer.Group) error {
	w.publish = nil
	upTo := make(map[string]int64)
	var rows []ledger.Delivery
	var names []string
	for _, event := range group.Due {
		row, ok := w.own[event.ID]
		if !ok {
			return errors.New("event is due but was not prepared")
		}
		rows, names = append(rows, row), append(names, row.StagedName)
		upTo[event.Subject] = max(upTo[event.Subject], event.Version)
	}
	for _, event := range group.Duplicates {
		upTo[event.Subject] = max(upTo[event.Subject], event.Version)
	}
	if err := ledger.Insert(ctx, tx, rows); errors.Is(err, ledger.ErrNoRow) {
		return consumer.AsPermanent(err)
	} else if err != nil {
		return err
	}
	publish, err := ledger.Staged(ctx, tx, upTo)
	if err != nil {
		return err
	}
	if err := w.stillStaged(names); err != nil {
		return consumer.AsOutage(err)
	}
	failpoint.Hit("mailer.inserted")
	w.publish = publish
	return nil
}

// stillStaged is the last look before the commit. It is a file call within the
// transaction, on purpose: a process may be frozen between Prepare and here for
// so long that its files were removed, and a row that names a missing file
// would count as published. From here on a freeze ends the transaction (the
// server closes it when idle), or, with one process, nobody else can write.
func (w *work) stillStaged(names []string) error {
	if len(names) == 0 {
		return nil
	}
	// By the monotonic and by the wall clock: the first stands still while a machine is suspended.
	now := w.effect.now()
	if now.Sub(w.staged) > freshFor || now.Round(0).Sub(w.staged.Round(0)) > freshFor {
		return errStale
	}
	return w.box.Present(names)
}

// Done publishes. Every error means that the folder cannot be used: the rows
// stay, and the events come again.
func (w *work) Done(ctx context.Context) error {
	failpoint.Hit("mailer.committed")
	begun := w.effect.now()
	outcome, err := w.box.Publish(items(w.publish), func() { failpoint.Hit("mailer.renamed") })
	if err != nil {
		return consumer.AsOutage(fmt.Errorf("publish mails: %w", err))
	}
	w.effect.metrics.count(ctx, w.effect.log, outcome)
	w.effect.metrics.duration.Observe(w.effect.now().Sub(begun).Seconds())
	w.discard(ctx, w.unnamed())
	failpoint.Hit("mailer.published")
	// What is missing somebody else has published, and notes it; or has died, and the sweeper does.
	w.effect.accepter.Add(without(ids(w.publish), outcome.Missing))
	return nil
}

// Discard removes what was staged.
func (w *work) Discard(ctx context.Context) { w.discard(ctx, w.names) }

func (w *work) discard(ctx context.Context, names []string) {
	if err := w.box.Discard(names); err != nil {
		w.effect.log.WarnContext(ctx, "staged files are left to the sweeper", logs.Error, err, logs.Count, len(names))
	}
}

// unnamed returns the own files that no row names: another replica was quicker.
func (w *work) unnamed() []string {
	named := make(map[string]bool, len(w.publish))
	for _, row := range w.publish {
		named[row.StagedName] = true
	}
	var names []string
	for _, name := range w.names {
		if !named[name] {
			names = append(names, name)
		}
	}
	return names
}

func items(deliveries []ledger.Delivery) []pickup.Item {
	out := make([]pickup.Item, len(deliveries))
	for i, d := range deliveries {
		out[i] = pickup.Item{Delivery: d.ID, Staged: d.StagedName, MessageID: d.MessageID}
	}
	return out
}

// without returns the ids that are not among others.
func without(ids, others []string) []string {
	return slices.DeleteFunc(ids, func(id string) bool { return slices.Contains(others, id) })
}

func ids(deliveries []ledger.Delivery) []string {
	out := make([]string, len(deliveries))
	for i, d := range deliveries {
		out[i] = d.ID
	}
	return out
}
