package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/reconcile"
)

// Account says of the store's events what became of them (reconcile.Store). It only reads, from tables and stream as
// they are; it works beside the relay and where none runs.
type Account struct {
	c      Config
	db     *database.DB
	conn   *broker.Conn
	orders OrderCheck
}

// OrderCheck compares a page of orders, those after an id, with their events: the orders are not the outbox's.
type OrderCheck func(ctx context.Context, q database.Querier, w reconcile.Window, after string) (reconcile.OrderPage, error)

// NewAccount does no I/O. c are the relay's settings.
func NewAccount(c Config, db *database.DB, conn *broker.Conn, orders OrderCheck) *Account {
	return &Account{c: c.withDefaults(), db: db, conn: conn, orders: orders}
}

const (
	// horizonSlack keeps events whose publish was forgotten a moment ago from counting as never published.
	horizonSlack = time.Minute
	maxStrays    = reconcile.MaxNamed
)

// Overview is asked first.
func (a *Account) Overview(ctx context.Context, w reconcile.Window) (o reconcile.Overview, err error) {
	q := a.db.Read()
	var now int64
	// Events commit out of the order of their clock readings, so the first of the window is the lowest of many.
	err = q.QueryRowContext(ctx, `SELECT coalesce((SELECT max(seq) FROM events), 0), `+a.db.Dialect().Now()+`,
			(SELECT count(*) FROM outbox), (SELECT count(*) FROM outbox WHERE dead_reason IS NOT NULL),
			coalesce((SELECT min(seq) FROM (SELECT seq FROM events WHERE created_at >= $1 ORDER BY created_at LIMIT 1000) AS oldest) - 1,
				(SELECT max(seq) FROM events), 0)`, database.Micros(w.Since)).
		Scan(&o.UpTo, &now, &o.Waiting, &o.Refused, &o.After)
	if err != nil {
		return o, fmt.Errorf("read overview: %w", err)
	}
	if w.Order != "" {
		o.After = 0
	}
	o.Horizon = database.Time(now).Add(-a.c.Horizon + horizonSlack)
	if a.c.Sequential {
		o.Sequential = a.c.Route
	}
	if o.Consumers, err = texts(ctx, q, `SELECT name FROM consumers ORDER BY name`); err != nil {
		return o, fmt.Errorf("read registered consumers: %w", err)
	}
	o.Strays, err = texts(ctx, q, `SELECT o.event_id FROM outbox o LEFT JOIN events e ON e.seq = o.seq
		WHERE e.seq IS NULL OR e.id <> o.event_id ORDER BY o.seq LIMIT $1`, maxStrays)
	if err != nil {
		return o, fmt.Errorf("look for strays: %w", err)
	}
	return o, nil
}

// Events is a page of the history.
func (a *Account) Events(ctx context.Context, w reconcile.Window, after, upTo int64) (page []reconcile.Event, err error) {
	query := `SELECT seq, id, order_id, version, created_at FROM events WHERE seq > $1 AND seq <= $2 AND created_at >= $3`
	args := []any{after, upTo, database.Micros(w.Since), reconcile.MaxEvents}
	if w.Order != "" {
		query += ` AND order_id = $5`
		args = append(args, w.Order)
	}
	rows, err := a.db.Read().QueryContext(ctx, query+` ORDER BY seq LIMIT $4`, args...)
	if err != nil {
		return nil, fmt.Errorf("read events: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	page = []reconcile.Event{}
	for rows.Next() {
		var e reconcile.Event
		var at int64
		if err := rows.Scan(&e.Seq, &e.ID, &e.Order, &e.Version, &at); err != nil {
			return nil, fmt.Errorf("read events: %w", err)
		}
		e.At = database.Time(at)
		page = append(page, e)
	}
	return page, rows.Err()
}

// Orders is a page of the check of versions.
func (a *Account) Orders(ctx context.Context, w reconcile.Window, after string) (reconcile.OrderPage, error) {
	return a.orders(ctx, a.db.Read(), w, after)
}

// Unknown are the ids that no event has.
func (a *Account) Unknown(ctx context.Context, ids []string) ([]string, error) {
	if err := reconcile.CheckPage(len(ids)); err != nil || len(ids) == 0 {
		return []string{}, err
	}
	condition, arg := a.db.Dialect().AnyOf(1, ids)
	found, err := texts(ctx, a.db.Read(), `SELECT id FROM events WHERE id `+condition, arg)
	if err != nil {
		return nil, fmt.Errorf("look up events: %w", err)
	}
	known := make(map[string]bool, len(found))
	for _, id := range found {
		known[id] = true
	}
	unknown := []string{}
	for _, id := range ids {
		if !known[id] {
			unknown = append(unknown, id)
		}
	}
	return unknown, nil
}

// Places looks events up in the outbox, in the log of what was published, and in the stream.
func (a *Account) Places(ctx context.Context, subscriber string, asked []reconcile.Event) ([]reconcile.Place, error) {
	if err := reconcile.CheckPage(len(asked)); err != nil || len(asked) == 0 {
		return []reconcile.Place{}, err
	}
	s := &search{
		a: a, subscriber: subscriber, rest: slices.Clone(asked), places: make(map[string]reconcile.Place, len(asked)), floors: map[string]uint64{},
	}
	// In the order in which events move, so that one that moves meanwhile is met further on.
	for _, step := range []func(context.Context) error{
		s.readState, s.inOutbox, s.inRefill, s.inLog, s.readStream, s.inStream, s.underWay,
	} {
		if err := step(ctx); err != nil {
			return nil, fmt.Errorf("look for events: %w", err)
		}
	}
	out := make([]reconcile.Place, len(asked))
	for n, e := range asked {
		out[n] = s.places[e.ID]
	}
	return out, nil
}

func texts(ctx context.Context, q database.Querier, query string, args ...any) (out []string, err error) {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	out = []string{}
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			return nil, err
		}
		out = append(out, text)
	}
	return out, rows.Err()
}

// floorOf returns up to which sequence the subscriber has acknowledged everything. One whose durable is missing or of an
// earlier generation makes it anew, and gets all that is in the stream.
func (s *search) floorOf(ctx context.Context, name string) (uint64, error) {
	if floor, known := s.floors[name]; known {
		return floor, nil
	}
	var durable string
	err := s.a.db.Read().QueryRowContext(ctx, `SELECT durable FROM consumers WHERE name = $1`, name).Scan(&durable)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return 0, fmt.Errorf("read registered consumer: %w", err)
	}
	s.floors[name] = 0
	if err != nil || s.info == nil || !strings.HasSuffix(durable, fmt.Sprintf("-%d", s.state.generation)) {
		return 0, nil
	}
	consumer, err := s.a.conn.JS.Consumer(ctx, s.a.c.Stream, durable)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("look up durable of %s: %w", name, err)
	}
	s.floors[name] = consumer.CachedInfo().AckFloor.Stream
	return s.floors[name], nil
}
