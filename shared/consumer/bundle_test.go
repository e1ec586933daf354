package consumer_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pillarbox/pillarbox/shared/consumer"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/events"
	"github.com/pillarbox/pillarbox/shared/logs"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// Each check is a conversation with a database; a longer run sets the flag.
	if err := flag.Set("rapid.checks", "25"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("database/sql.(*DB).connectionOpener"))
}

const patience = time.Minute

// bundle is one database and one stream, with any number of replicas on them.
type bundle struct {
	t      testing.TB
	db     *database.DB
	stream *stream
	config consumer.Config
	past   consumer.Past
}

func setup(t testing.TB, db *database.DB) *bundle {
	return &bundle{t: t, db: db, stream: newStream(), config: consumer.Config{
		Name: "loyalty", Ordered: true, Backoff: 10 * time.Millisecond, MaxBackoff: 50 * time.Millisecond,
		Sweep: 20 * time.Millisecond, Drain: 5 * time.Second,
	}}
}

// replica is a running consumer.
type replica struct {
	*consumer.Consumer
	sub  *subscriber
	stop func()
}

func (b *bundle) start(e consumer.Effect) *replica { return b.startOn(b.db, e) }

func (b *bundle) startOn(db *database.DB, e consumer.Effect) *replica {
	b.t.Helper()
	sub := b.stream.subscriber(100)
	c, err := consumer.New(b.config, consumer.Deps{DB: db, Subscriber: sub, Effect: e, Past: b.past, Log: logs.Discard()})
	require.NoError(b.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	var once sync.Once
	stop := func() {
		once.Do(func() {
			cancel()
			require.NoError(b.t, <-done)
		})
	}
	b.t.Cleanup(stop)
	return &replica{c, sub, stop}
}

// testingT is what both *testing.T and *rapid.T are.
type testingT interface {
	require.TestingT
	Helper()
}

func (b *bundle) eventually(t testingT, ok func() bool, what string) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !ok() {
		if time.Now().After(deadline) {
			acked, nacked, pending := b.stream.counts()
			require.FailNow(t, "not in time: "+what, "acked %d nacked %d pending %d ledger %d parked %v",
				acked, nacked, pending, b.count("SELECT count(*) FROM ledger"), b.text("SELECT order_id || ' ' || version || ' ' || state FROM parked LIMIT 5"))
		}
		<-time.After(2 * time.Millisecond)
	}
}

func (b *bundle) count(query string, args ...any) (n int) {
	b.t.Helper()
	require.NoError(b.t, b.db.Read().QueryRowContext(context.Background(), query, args...).Scan(&n))
	return n
}

func (b *bundle) text(query string, args ...any) (out []string) {
	b.t.Helper()
	rows, err := b.db.Read().QueryContext(context.Background(), query, args...)
	require.NoError(b.t, err)
	defer func() { require.NoError(b.t, rows.Close()) }()
	for rows.Next() {
		var s string
		require.NoError(b.t, rows.Scan(&s))
		out = append(out, s)
	}
	require.NoError(b.t, rows.Err())
	return out
}

func (b *bundle) exec(query string, args ...any) {
	b.t.Helper()
	require.NoError(b.t, b.db.Tx(context.Background(), func(ctx context.Context, tx *database.Tx) error {
		_, err := tx.ExecContext(ctx, query, args...)
		return err
	}))
}

// versions are those of an order's effects, in the order they happened.
func (b *bundle) versions(order string) string {
	return strings.Join(b.text(`SELECT CAST(order_version AS TEXT) FROM ledger WHERE order_id = $1 ORDER BY position`, order), " ")
}

func upTo(n int) string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprint(i + 1)
	}
	return strings.Join(out, " ")
}

func (b *bundle) effects() int { return b.count(`SELECT count(*) FROM ledger`) }
func (b *bundle) parked(state string) int {
	return b.count(`SELECT count(*) FROM parked WHERE state = $1`, state)
}
func (b *bundle) letters() int { return b.count(`SELECT count(*) FROM dead_letters`) }

// store writes a waiting row as a replica that has crashed since would leave it.
func (b *bundle) store(order string, version int, sequence uint64, age time.Duration, placed time.Time) {
	b.exec(`INSERT INTO parked (event_id, order_id, version, state, event, stream_sequence, created_at)
		VALUES ($1, $2, $3, 'waiting', $4, $5, $6)`, eventID(order, version), order, version,
		eventPlaced(order, version, placed), int64(sequence), database.Micros(time.Now().Add(-age)))
}

func eventID(order string, version int) string { return fmt.Sprintf("%s-%d", order, version) }

func event(order string, version int) []byte { return eventPlaced(order, version, time.Now()) }

func eventPlaced(order string, version int, placed time.Time) []byte {
	data, err := json.Marshal(events.Order{
		ID: order, Version: int64(version), Status: "placed", Customer: events.Customer{Email: "ada@example.com"},
		Currency: "EUR", Total: "9.00", PlacedAt: placed.UTC(),
	})
	if err != nil {
		panic(err)
	}
	kind := events.TypeChanged
	if version == 1 {
		kind = events.TypePlaced
	}
	raw, err := events.Event{
		ID: eventID(order, version), Source: events.Source, Type: kind, Time: time.Now(),
		Subject: order, Version: int64(version), Data: data,
	}.Encode()
	if err != nil {
		panic(err)
	}
	return raw
}

// record is the effect of these tests: a row per event whose unique key would
// refuse a second one.
func record(ctx context.Context, tx *database.Tx, due []consumer.Event) error {
	if len(due) == 0 {
		return nil
	}
	args := make([]any, 0, 7*len(due))
	for _, e := range due {
		args = append(args, e.ID, "ada@example.com", e.Subject, e.Version, 9, "placed", 0)
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO ledger (event_id, customer, order_id, order_version, points, reason, at) VALUES `+
		database.Values(len(due), 7), args...)
	return err
}

// staged is an effect in all steps, with hooks to fail in each, that checks the contract of Work.
type staged struct {
	t       testing.TB
	prepare func(ctx context.Context, g consumer.Group) error
	apply   func(ctx context.Context, g consumer.Group) error
	done    func(ctx context.Context, g consumer.Group) error
	probe   func(ctx context.Context) error

	open, dones, discards atomic.Int64
	doneEvents            sync.Map // event id → true
}

func (s *staged) Prepare(ctx context.Context, g consumer.Group) (consumer.Work, error) {
	if s.prepare != nil {
		if err := s.prepare(ctx, g); err != nil {
			return nil, err
		}
	}
	w := &work{effect: s, prepared: map[string]bool{}}
	for _, e := range g.Due {
		w.prepared[e.ID] = true
	}
	s.open.Add(1)
	return w, nil
}

func (s *staged) Probe(ctx context.Context) error {
	if s.probe == nil {
		return nil
	}
	return s.probe(ctx)
}

type work struct {
	effect   *staged
	prepared map[string]bool
	group    consumer.Group
	ended    bool
}

var errNotPrepared = errors.New("not prepared")

func (w *work) Apply(ctx context.Context, tx *database.Tx, g consumer.Group) error {
	w.group = g
	for _, e := range g.Due {
		if !w.prepared[e.ID] {
			w.effect.t.Errorf("%s is due and was not prepared", e.ID)
			return errNotPrepared
		}
	}
	if w.effect.apply != nil {
		if err := w.effect.apply(ctx, g); err != nil {
			return err
		}
	}
	return record(ctx, tx, g.Due)
}

func (w *work) end() {
	if w.ended {
		w.effect.t.Errorf("work ended twice")
	}
	w.ended = true
	w.effect.open.Add(-1)
}

func (w *work) Done(ctx context.Context) error {
	w.end()
	w.effect.dones.Add(1)
	if w.effect.done != nil {
		if err := w.effect.done(ctx, w.group); err != nil {
			return err
		}
	}
	for _, list := range [][]consumer.Event{w.group.Due, w.group.Duplicates} {
		for _, e := range list {
			w.effect.doneEvents.Store(e.ID, true)
		}
	}
	return nil
}

func (w *work) Discard(context.Context) {
	w.end()
	w.effect.discards.Add(1)
}

func has(list []consumer.Event, id string) bool {
	for _, e := range list {
		if e.ID == id {
			return true
		}
	}
	return false
}

func (b *bundle) noLetters(t require.TestingT) {
	require.Empty(t, b.text(`SELECT id || ': ' || reason FROM dead_letters`))
}
