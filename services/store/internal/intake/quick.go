package intake

import (
	"cmp"
	"context"
	"net/http"
	"slices"

	"github.com/pillarbox/pillarbox/services/store/internal/order"
	"github.com/pillarbox/pillarbox/services/store/internal/orderdb"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/failpoint"
	"github.com/pillarbox/pillarbox/shared/outbox"
)

// quick writes a group of nothing but new orders as one batch, which PostgreSQL answers in
// one round trip instead of six. Where a key is taken the unique index refuses all of it, and
// the caller takes the way that asks first: done is false then, and nothing has happened.
func (in *Intake) quick(ctx context.Context, group []*job) (w writer, done bool, err error) {
	keys := make(map[orderdb.Key]bool, len(group))
	for _, j := range group {
		if j.placement == nil || j.doubt || j.keyed != nil && keys[j.keyed.Key] {
			return w, false, nil
		}
		if j.keyed != nil {
			keys[j.keyed.Key] = true
		}
	}
	w = writer{in: in, group: group, results: make([]result, len(group))}
	if w.at, err = in.clock.now(ctx); err != nil {
		return w, false, nil // the other way finds out what is wrong
	}
	statements, err := w.statements()
	if err != nil {
		return w, false, err
	}
	failpoint.Hit("store.intake.before_commit")
	if len(statements) > 0 {
		err = in.deps.DB.Batch(ctx, statements)
	}
	if database.Classify(err) == database.ClassUnique {
		return w, false, nil
	}
	return w, err == nil, err
}

// statements makes the orders and what is to be written of them: keys before orders, keys sorted,
// as in the other way.
func (w *writer) statements() ([]database.Statement, error) {
	var answers []orderdb.Answer
	for i, j := range w.group {
		m, ok := w.make(i, j)
		if !ok {
			continue
		}
		w.keep(m)
		if j.keyed != nil {
			answers = append(answers, w.answer(m))
		}
	}
	if len(w.saved) == 0 {
		return nil, nil // none of them can be stored
	}
	orders, err := orderdb.Insert(w.in.deps.DB.Dialect(), w.saved)
	if err != nil {
		return nil, err
	}
	var all []database.Statement
	if len(answers) > 0 {
		sortAnswers(answers)
		all = append(all, orderdb.InsertAnswers(w.in.deps.DB.Dialect(), answers))
	}
	all = append(all, orders)
	return append(all, outbox.Statements(w.in.deps.DB.Dialect(), w.rows)...), nil
}

// made is a new order that is ready to be written.
type made struct {
	index int
	order order.Order
	row   outbox.Row
	body  []byte
}

// make makes the order of a placement; false means that its result is an error.
func (w *writer) make(i int, j *job) (made, bool) {
	o := j.placement.Order(j.orderID, w.at)
	row, err := w.in.event(o, j)
	if err != nil {
		w.results[i].err = err
		return made{}, false
	}
	return made{index: i, order: o, row: row, body: w.in.deps.Render(o)}, true
}

// answer is what is stored for the key of a new order.
func (w *writer) answer(m made) orderdb.Answer {
	keyed := w.group[m.index].keyed
	return orderdb.Answer{
		Key: keyed.Key, Fingerprint: keyed.Fingerprint, OrderID: m.order.ID, Status: http.StatusCreated, Body: m.body, At: w.at,
	}
}

func sortAnswers(answers []orderdb.Answer) {
	slices.SortFunc(answers, func(a, b orderdb.Answer) int {
		return cmp.Or(cmp.Compare(a.Key.Caller, b.Key.Caller), cmp.Compare(a.Key.Name, b.Key.Name))
	})
}
