package intake

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/pillarbox/pillarbox/services/store/internal/order"
	"github.com/pillarbox/pillarbox/services/store/internal/orderdb"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/outbox"
)

// writer is the work inside one transaction. Its steps take locks in one order, keys before
// orders and both sorted, so that two groups never wait for each other.
type writer struct {
	in      *Intake
	tx      *database.Tx
	group   []*job
	results []result // of the job with the same index

	at    time.Time // the database's clock
	saved []order.Order
	rows  []outbox.Row
}

// errAnswerGone: an old answer was removed between the refused claim and the read. The next attempt gets the key.
var errAnswerGone = errors.New("stored answer is gone")

func (w *writer) write(ctx context.Context) error {
	var err error
	if w.at, err = orderdb.Now(ctx, w.tx); err != nil {
		return err
	}
	if err := w.place(ctx); err != nil {
		return err
	}
	if err := w.change(ctx); err != nil {
		return err
	}
	if err := orderdb.Save(ctx, w.tx, w.saved); err != nil {
		return err
	}
	if len(w.rows) == 0 {
		return nil
	}
	return outbox.Append(ctx, w.tx, w.rows)
}

// place adds the new orders, except those whose key is taken.
func (w *writer) place(ctx context.Context) error {
	var free []made
	byKey := map[orderdb.Key][]made{}
	stored, err := w.storedBefore(ctx)
	if err != nil {
		return err
	}
	for i, j := range w.group {
		if _, found := stored[j.orderID]; found || j.placement == nil {
			continue
		}
		m, ok := w.make(i, j)
		if !ok {
			continue
		}
		if j.keyed == nil {
			free = append(free, m)
		} else {
			byKey[j.keyed.Key] = append(byKey[j.keyed.Key], m)
		}
	}
	if err := w.placeKeyed(ctx, byKey); err != nil {
		return err
	}
	for _, m := range free {
		w.keep(m)
	}
	return nil
}

// storedBefore finds those of the jobs in doubt that an earlier transaction did store.
func (w *writer) storedBefore(ctx context.Context) (map[string]order.Order, error) {
	var ids []string
	for _, j := range w.group {
		if j.doubt {
			ids = append(ids, j.orderID)
		}
	}
	return orderdb.Lock(ctx, w.tx, ids)
}

func (w *writer) keep(m made) {
	w.saved = append(w.saved, m.order)
	w.rows = append(w.rows, m.row)
	w.results[m.index].answer = Answer{OrderID: m.order.ID, Body: m.body}
}

// placeKeyed claims each key for the first job of this group that has it. The others, and all whose key was
// taken before, get the stored answer.
func (w *writer) placeKeyed(ctx context.Context, byKey map[orderdb.Key][]made) error {
	claims := make([]orderdb.Answer, 0, len(byKey))
	for _, jobs := range byKey {
		claims = append(claims, w.answer(jobs[0]))
	}
	sortAnswers(claims)
	claimed, err := orderdb.Claim(ctx, w.tx, claims)
	if err != nil {
		return err
	}
	var taken []orderdb.Key
	for _, c := range claims {
		if !claimed[c.Key] {
			taken = append(taken, c.Key)
		}
	}
	stored, err := orderdb.Answers(ctx, w.tx, taken)
	if err != nil {
		return err
	}
	for _, c := range claims {
		jobs, first := byKey[c.Key], c
		if claimed[c.Key] {
			w.keep(jobs[0])
			jobs = jobs[1:]
		} else if answer, found := stored[c.Key]; found {
			first = answer
		} else {
			return errAnswerGone
		}
		w.replay(jobs, first)
	}
	return nil
}

func (w *writer) replay(jobs []made, first orderdb.Answer) {
	for _, m := range jobs {
		r := &w.results[m.index]
		if !bytes.Equal(first.Fingerprint, w.group[m.index].keyed.Fingerprint) {
			r.err = ErrKeyReused
			continue
		}
		r.answer = Answer{OrderID: first.OrderID, Body: first.Body, Replayed: true}
	}
}

// change locks the orders that the group changes and applies the changes as they came.
func (w *writer) change(ctx context.Context) error {
	var ids []string
	for _, j := range w.group {
		if j.change != nil {
			ids = append(ids, j.orderID)
		}
	}
	slices.Sort(ids)
	ids = slices.Compact(ids)
	orders, err := orderdb.Lock(ctx, w.tx, ids)
	if err != nil {
		return err
	}
	changed := map[string]bool{}
	for i, j := range w.group {
		if j.change == nil {
			continue
		}
		o, found := orders[j.orderID]
		if !found {
			w.results[i].err = orderdb.ErrNotFound
			continue
		}
		next, differs, err := j.change(o, w.at)
		var row outbox.Row
		if err == nil && differs {
			row, err = w.in.event(next, j)
		}
		if err != nil {
			w.results[i].err = err
			continue
		}
		w.results[i].order = next
		if differs {
			orders[j.orderID], changed[j.orderID] = next, true
			w.rows = append(w.rows, row)
		}
	}
	for _, id := range ids {
		if changed[id] {
			w.saved = append(w.saved, orders[id])
		}
	}
	return nil
}
