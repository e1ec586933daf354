package consumer_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/shared/consumer"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
	"github.com/pillarbox/pillarbox/shared/reconcile"
)

// known is the evidence of a service whose effects are a set.
type known map[string]consumer.Proof

func (e known) Proofs(_ context.Context, _ database.Querier, ids []string) (map[string]consumer.Proof, error) {
	found := map[string]consumer.Proof{}
	for _, id := range ids {
		if proof, ok := e[id]; ok {
			found[id] = proof
		}
	}
	return found, nil
}

func (e known) Held(_ context.Context, _ database.Querier, _ reconcile.Window, cursor string) ([]reconcile.HeldEvent, string, error) {
	if cursor == "" {
		return []reconcile.HeldEvent{{ID: "first"}}, "1", nil
	}
	return []reconcile.HeldEvent{{ID: "second"}}, "", nil
}

// TestAccountOfEachState writes what a consumer writes, and asks.
func TestAccountOfEachState(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		do := func(query string, args ...any) {
			t.Helper()
			require.NoError(t, db.Tx(t.Context(), func(ctx context.Context, tx *database.Tx) error {
				_, err := tx.ExecContext(ctx, query, args...)
				return err
			}))
		}
		start := time.Now().Add(-24 * time.Hour).UTC().Truncate(time.Microsecond)
		do(`INSERT INTO consumer_state (name, started_at) VALUES ('loyalty', $1)`, database.Micros(start))
		park := func(id, state, headers string) {
			do(`INSERT INTO parked (event_id, order_id, version, state, event, headers) VALUES ($1, $1, 1, $2, $3, $4)`, id, state, []byte(`{}`), headers)
		}
		bury := func(id string) {
			do(`INSERT INTO dead_letters (id, event_id, order_id, version, headers, body, reason) VALUES ($1, $2, $2, 1, '{}', $3, 'bad')`,
				"event-"+id, id, []byte(`{}`))
		}
		lane := func(order string, version int) {
			do(`INSERT INTO lanes (order_id, version) VALUES ($1, $2)`, order, version)
		}
		proofs := known{}
		for _, id := range []string{"done", "late", "both", "dead and done", "unlaned", "many"} {
			proofs[id] = consumer.Proof{In: reconcile.Done, Many: id == "many"}
		}
		for _, id := range []string{"done", "both", "dead and done", "many", "passed", "dropped", "skipped", "late"} {
			lane(id, 1)
		}
		park("waiting", "waiting", `{}`)
		park("parked", "parked", `{"Pillarbox-Route":["loyalty,audit,mailer"]}`)
		park("dead", "dead", `{}`)
		bury("dead")
		park("both", "waiting", `{}`)
		bury("dead and done")
		bury("letter")
		do(`INSERT INTO operator_actions (who, action, target, reason, result) VALUES ('ada', 'drop', 'event-dropped', 'x', 'dropped, and its order goes on'),
			('ada', 'skip', '{"order":"skipped","from":1,"to":1}', 'x', 'version 1 skipped'), ('ada', 'drop', 'event-passed', 'x', 'refused: no')`)

		want := map[string]reconcile.State{
			"done":          {In: []reconcile.Standing{reconcile.Done}},
			"late":          {In: []reconcile.Standing{reconcile.Done}},
			"many":          {In: []reconcile.Standing{reconcile.Done, reconcile.Done}},
			"waiting":       {In: []reconcile.Standing{reconcile.Waiting}},
			"parked":        {In: []reconcile.Standing{reconcile.Parked}, Onward: []string{"audit", "mailer"}},
			"dead":          {In: []reconcile.Standing{reconcile.Dead}},
			"letter":        {In: []reconcile.Standing{reconcile.Dead}, Note: "bad"},
			"both":          {In: []reconcile.Standing{reconcile.InFlight}},
			"dead and done": {In: []reconcile.Standing{reconcile.Done, reconcile.Dead}, Note: "bad"},
			"dropped":       {In: []reconcile.Standing{reconcile.Settled}},
			"skipped":       {In: []reconcile.Standing{reconcile.Settled}},
			"passed":        {In: []reconcile.Standing{reconcile.Passed}},
			"nothing":       {In: []reconcile.Standing{reconcile.None}},
			"early":         {In: []reconcile.Standing{reconcile.Exempt}},
			"unlaned":       {In: []reconcile.Standing{reconcile.Done}, Lane: new(int64)},
		}
		var asked []reconcile.Event
		for id := range want {
			at := start.Add(time.Hour)
			if id == "early" {
				at = start.Add(-time.Hour)
			}
			asked = append(asked, reconcile.Event{ID: id, Order: id, Version: 1, At: at})
		}
		account := consumer.NewAccount(consumer.AccountConfig{Name: "loyalty", Ordered: true, Evidence: proofs, Keep: time.Hour}, db)
		answer, err := account.States(t.Context(), asked)
		require.NoError(t, err)
		require.WithinDuration(t, time.Now().Add(-time.Hour), answer.CompleteSince, time.Minute)
		for n, e := range asked {
			require.Equal(t, want[e.ID].In, answer.States[n].In, e.ID)
			require.Equal(t, want[e.ID].Note, answer.States[n].Note, e.ID)
			require.Equal(t, want[e.ID].Lane, answer.States[n].Lane, e.ID)
			require.ElementsMatch(t, want[e.ID].Onward, answer.States[n].Onward, e.ID)
		}

		// Lanes of old orders may have been removed; without other evidence so may all that it knew.
		do(`UPDATE consumer_state SET removed_up_to = $1`, database.Micros(start.Add(2*time.Hour)))
		answer, err = account.States(t.Context(), []reconcile.Event{{ID: "unlaned", Order: "unlaned", Version: 1, At: start.Add(time.Hour)}})
		require.NoError(t, err)
		require.Nil(t, answer.States[0].Lane)
		bare := consumer.NewAccount(consumer.AccountConfig{Name: "loyalty", Ordered: true}, db)
		answer, err = bare.States(t.Context(), []reconcile.Event{{ID: "x", Order: "passed", Version: 1, At: start.Add(9 * time.Hour)}})
		require.NoError(t, err)
		require.Equal(t, []reconcile.Standing{reconcile.Done}, answer.States[0].In)
		require.Equal(t, start.Add(3*time.Hour), answer.CompleteSince)

		_, err = account.States(t.Context(), make([]reconcile.Event, reconcile.MaxEvents+1))
		require.ErrorIs(t, err, reconcile.ErrInvalid)
	})
}

// TestAccountListsWhatItHolds in pages, and only what is of orders.
func TestAccountListsWhatItHolds(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		failing := b.start(consumer.Apply(func(context.Context, *database.Tx, []consumer.Event) error {
			return consumer.AsPermanent(fmt.Errorf("no"))
		}))
		b.stream.publish(event("dead-order", 1), event("dead-order", 2))
		b.eventually(t, func() bool { return b.count(`SELECT count(*) FROM parked`) == 2 }, "parked")
		failing.stop()
		account := consumer.NewAccount(consumer.AccountConfig{Name: "loyalty", Ordered: true, Evidence: known{}}, db)
		held := map[string]int{}
		for cursor, pages := "", 0; ; pages++ {
			page, err := account.Held(t.Context(), reconcile.Window{}, cursor)
			require.NoError(t, err)
			require.Less(t, pages, 10)
			for _, h := range page.Events {
				held[h.ID]++
			}
			if cursor = page.Next; cursor == "" {
				break
			}
		}
		ids := b.text(`SELECT event_id FROM parked ORDER BY version`)
		require.Equal(t, map[string]int{"first": 1, "second": 1, ids[0]: 2, ids[1]: 1}, held, "a dead one has its row and its letter")
		_, err := account.Held(t.Context(), reconcile.Window{}, "what")
		require.ErrorIs(t, err, reconcile.ErrInvalid)
	})
}
