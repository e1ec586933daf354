package consumer_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pillarbox/pillarbox/shared/consumer"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
	"github.com/pillarbox/pillarbox/shared/logs"
	"github.com/stretchr/testify/require"
)

var ada = consumer.Actor{Who: "ada@desk", Reason: "because"}

func (b *bundle) operator() *consumer.Operator {
	return consumer.NewOperator("loyalty", b.config.Ordered, b.db, logs.Discard())
}

// actions are what was done and what came of it, the oldest first.
func (b *bundle) actions() []string {
	return b.text(`SELECT who || ' ' || action || ': ' || result FROM operator_actions ORDER BY id`)
}

// fails is an effect that refuses the given events for good until they are healed.
func fails(t testing.TB, ids ...string) (*staged, []*failing) {
	all := make([]*failing, len(ids))
	for n, id := range ids {
		all[n] = &failing{id: id, err: consumer.AsPermanent(errBroken)}
	}
	return &staged{t: t, prepare: func(ctx context.Context, g consumer.Group) error {
		for _, f := range all {
			if err := f.check(ctx, g); err != nil {
				return err
			}
		}
		return nil
	}}, all
}

func TestParkedIsListedInPages(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		b.lane("a", 1)
		for _, v := range []int{4, 5, 6} {
			b.store("a", v, 0, time.Minute, time.Now())
		}
		b.store("b", 1, 0, time.Minute, time.Now())
		b.exec(`UPDATE parked SET state = 'parked', attempts = 3, next_attempt_at = 77, last_error = 'broken' WHERE order_id = 'b'`)
		o := b.operator()
		var got []string
		var f consumer.ParkedFilter
		for {
			page, err := o.Parked(t.Context(), f, 2)
			require.NoError(t, err)
			for _, p := range page {
				got = append(got, fmt.Sprintf("%s%d %s %d %t", p.Order, p.Version, p.State, *p.Lane, p.Missing != nil))
				f.After = consumer.Place{Order: p.Order, Version: p.Version, Event: p.Event}
			}
			if len(page) < 2 {
				break
			}
		}
		require.Equal(t, []string{"a4 waiting 1 true", "a5 waiting 1 true", "a6 waiting 1 true", "b1 parked 0 false"}, got)
		page, err := o.Parked(t.Context(), consumer.ParkedFilter{State: "parked"}, 0)
		require.NoError(t, err)
		require.Len(t, page, 1)
		require.EqualValues(t, 77, page[0].NextAt.UnixMicro())
		_, err = o.Parked(t.Context(), consumer.ParkedFilter{State: "odd"}, 0)
		require.ErrorIs(t, err, consumer.ErrInvalid)
		whole, err := o.ParkedOrder(t.Context(), "a")
		require.NoError(t, err)
		require.Equal(t, "versions 2 to 3", whole[0].Missing.String())
		require.Contains(t, *whole[0].Body, `"id":"a-4"`)
		_, err = o.ParkedOrder(t.Context(), "nobody")
		require.ErrorIs(t, err, consumer.ErrNotFound)
	})
}

func TestRetryMakesDueNow(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		b.config.Backoff, b.config.MaxBackoff = time.Hour, time.Hour
		f := &failing{id: eventID("a", 1), err: errBroken}
		b.start(&staged{t: t, prepare: f.check})
		b.stream.publish(event("a", 1))
		b.eventually(t, func() bool { return b.parked("parked") == 1 }, "parked")
		o := b.operator()
		f.healed.Store(true)
		_, err := o.Retry(t.Context(), ada, consumer.RetryFilter{})
		require.ErrorIs(t, err, consumer.ErrInvalid)
		n, err := o.Retry(t.Context(), ada, consumer.RetryFilter{Order: "b"})
		require.NoError(t, err)
		require.Zero(t, n)
		n, err = o.Retry(t.Context(), ada, consumer.RetryFilter{Order: "a"})
		require.NoError(t, err)
		require.EqualValues(t, 1, n)
		b.eventually(t, func() bool { return b.versions("a") == "1" }, "done")
		require.Equal(t, []string{"ada@desk retry: 0 due now", "ada@desk retry: 1 due now"}, b.actions())
	})
}

// TestSkipFillsAGap: the order goes on without versions that never came, when the person saw what is so.
func TestSkipFillsAGap(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		b.lane("a", 1)
		b.store("a", 4, 0, time.Minute, time.Now())
		b.store("a", 5, 0, time.Minute, time.Now())
		b.start(consumer.Apply(record))
		o := b.operator()
		for _, wrong := range []consumer.Range{{From: 3, To: 3}, {From: 2, To: 4}, {From: 2, To: 9}} {
			require.ErrorIs(t, o.Skip(t.Context(), ada, "a", wrong), consumer.ErrRefused, "%v", wrong)
		}
		require.ErrorIs(t, o.Skip(t.Context(), ada, "nobody", consumer.Range{From: 1, To: 1}), consumer.ErrRefused)
		require.ErrorIs(t, o.Skip(t.Context(), consumer.Actor{Who: "ada"}, "a", consumer.Range{From: 2, To: 3}), consumer.ErrInvalid)
		require.Zero(t, b.effects())
		require.NoError(t, o.Skip(t.Context(), ada, "a", consumer.Range{From: 2, To: 3}))
		b.eventually(t, func() bool { return b.versions("a") == "4 5" }, "goes on")
		b.stream.publish(event("a", 2)) // too late
		b.eventually(t, func() bool { acked, _, _ := b.stream.counts(); return acked == 1 }, "acknowledged")
		require.Equal(t, "4 5", b.versions("a"))
		require.Contains(t, b.actions(), "ada@desk skip: versions 2 to 3 skipped")
		require.Len(t, b.actions(), 5, "refused wishes are recorded too")
	})
}

// TestFillGivesWhatNeverCame: one version after the other, and nothing that is not missing.
func TestFillGivesWhatNeverCame(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		b.lane("a", 1)
		b.store("a", 4, 0, time.Minute, time.Now())
		b.exec(`UPDATE parked SET headers = '{"Pillarbox-Route":["loyalty,audit"]}'`)
		o := b.operator()
		for body, kind := range map[string]error{
			string(event("a", 1)): consumer.ErrRefused, // took effect
			string(event("a", 4)): consumer.ErrRefused, // is here
			string(event("a", 5)): consumer.ErrRefused, // nothing waits for it
			string(event("b", 2)): consumer.ErrInvalid, // another order's
			"noise":               consumer.ErrInvalid,
		} {
			require.ErrorIs(t, o.Fill(t.Context(), ada, "a", []byte(body)), kind, body)
		}
		require.Equal(t, 1, b.parked("waiting"))
		require.NoError(t, o.Fill(t.Context(), ada, "a", event("a", 3)))
		require.NoError(t, o.Fill(t.Context(), ada, "a", event("a", 2)))
		require.ErrorIs(t, o.Fill(t.Context(), ada, "a", event("a", 2)), consumer.ErrRefused)
		require.Equal(t, 3, b.count(`SELECT count(*) FROM parked WHERE headers LIKE '%audit%'`), "they are on the route of what waits")
		b.exec(`UPDATE parked SET headers = '{}'`)
		b.start(consumer.Apply(record))
		b.eventually(t, func() bool { return b.versions("a") == "2 3 4" }, "in order")
	})
}

func TestSkipKeepsTheBytes(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		b.config.Backoff, b.config.MaxBackoff = time.Hour, time.Hour
		f := &failing{id: eventID("a", 1), err: errBroken}
		b.start(&staged{t: t, prepare: f.check})
		body := event("a", 1)
		b.stream.publish(body, event("a", 2))
		b.eventually(t, func() bool { return b.parked("parked") == 1 && b.parked("waiting") == 1 }, "parked")
		o := b.operator()
		require.NoError(t, o.Skip(t.Context(), ada, "a", consumer.Range{From: 1, To: 1}))
		b.eventually(t, func() bool { return b.versions("a") == "2" }, "goes on")
		l, err := o.Letter(t.Context(), "event-a-1")
		require.NoError(t, err)
		require.True(t, l.Skipped)
		require.Equal(t, string(body), *l.Body)
		require.Contains(t, l.Reason, "skipped by ada@desk: because")
		require.Contains(t, string(l.History), "broken")
		_, err = o.StartRedrive(t.Context(), ada, consumer.LetterFilter{}, 0, false)
		require.ErrorIs(t, err, consumer.ErrRefused)
		require.ErrorContains(t, err, "went on without it")
	})
}

func TestDropLetsTheOrderGoOn(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		e, _ := fails(t, eventID("a", 1))
		b.start(e)
		b.stream.publish(event("a", 1), event("a", 2), []byte("noise"))
		b.eventually(t, func() bool { return b.letters() == 2 && b.parked("waiting") == 1 }, "dead")
		o := b.operator()
		all, err := o.Letters(t.Context(), consumer.LetterFilter{}, consumer.LetterPlace{}, 0)
		require.NoError(t, err)
		require.Len(t, all, 2)
		found, err := o.Letters(t.Context(), consumer.LetterFilter{Order: "a", Reason: "BROKEN", Since: time.Now().Add(-time.Hour)}, consumer.LetterPlace{}, 0)
		require.NoError(t, err)
		require.Len(t, found, 1)
		require.True(t, found[0].Holds)
		for _, none := range []consumer.LetterFilter{{Order: "b"}, {Reason: "100%"}, {Since: time.Now().Add(time.Hour)}} {
			found, err := o.Letters(t.Context(), none, consumer.LetterPlace{}, 0)
			require.NoError(t, err)
			require.Empty(t, found)
		}
		require.ErrorIs(t, o.Drop(t.Context(), consumer.Actor{Who: "ada"}, "event-a-1"), consumer.ErrInvalid, "without a reason")
		require.ErrorIs(t, o.Drop(t.Context(), ada, "event-b-1"), consumer.ErrNotFound)
		for _, l := range all {
			require.NoError(t, o.Drop(t.Context(), ada, l.ID))
		}
		b.eventually(t, func() bool { return b.versions("a") == "2" }, "goes on")
		require.Zero(t, b.letters())
		b.eventually(t, func() bool { return b.count(`SELECT count(*) FROM parked`) == 0 }, "no row")
		require.Contains(t, b.actions(), "ada@desk drop: dropped, and its order goes on")
		require.Contains(t, b.actions(), "ada@desk drop: dropped")
	})
}

// TestSkipPolicy: with AfterDeath skip an order goes on at once, and the letter says so.
func TestSkipPolicy(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		b.config.AfterDeath = consumer.Skip
		b.config.MaxAttempts = 2
		f := &failing{id: eventID("a", 2), err: errBroken}
		b.start(&staged{t: t, prepare: f.check})
		for v := range 4 {
			b.stream.publish(event("a", v+1))
		}
		b.eventually(t, func() bool { return b.versions("a") == "1 3 4" }, "passed over")
		require.Equal(t, []string{"event-a-2 2 1"}, b.text(`SELECT id || ' ' || attempts || ' ' || skipped FROM dead_letters`))
		b.eventually(t, func() bool { return b.count(`SELECT count(*) FROM parked`) == 0 }, "no row")
		f.healed.Store(true)
		b.stream.publish(event("a", 2))
		b.eventually(t, func() bool { acked, _, _ := b.stream.counts(); return acked == 5 }, "acknowledged")
		require.Equal(t, "1 3 4", b.versions("a"))
	})
}

// TestLetterKeepsHistory: every attempt of an event stands in its letter.
func TestLetterKeepsHistory(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		b := setup(t, db)
		b.config.MaxAttempts = 3
		f := &failing{id: eventID("a", 1), err: errBroken}
		b.start(&staged{t: t, apply: f.check})
		b.stream.publish(event("a", 1))
		b.eventually(t, func() bool { return b.letters() == 1 }, "dead")
		l, err := b.operator().Letter(t.Context(), "event-a-1")
		require.NoError(t, err)
		require.Equal(t, 3, strings.Count(string(l.History), "broken"))
		require.Contains(t, string(l.History), `"attempt":3`)
	})
}

func TestWhoActsIsNamed(t *testing.T) {
	t.Parallel()
	db, _ := databasetest.SQLite(t, "loyalty")
	o := setup(t, db).operator()
	_, err := o.Retry(t.Context(), consumer.Actor{}, consumer.RetryFilter{All: true})
	require.ErrorIs(t, err, consumer.ErrInvalid)
	_, err = o.Retry(t.Context(), consumer.Actor{Who: strings.Repeat("é", 1000) + "\x00"}, consumer.RetryFilter{All: true})
	require.NoError(t, err)
	for n := range 3 {
		_, err = o.Retry(t.Context(), consumer.Actor{Who: fmt.Sprint("w", n)}, consumer.RetryFilter{All: true})
		require.NoError(t, err)
	}
	page, err := o.Actions(t.Context(), 0, 2)
	require.NoError(t, err)
	require.Equal(t, "w2 w1", page[0].Who+" "+page[1].Who)
	page, err = o.Actions(t.Context(), page[1].ID, 0)
	require.NoError(t, err)
	require.Len(t, page, 2)
}
