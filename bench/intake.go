package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pillarbox/pillarbox/services/store/storesvc"
	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/logs"
)

// measureIntake is about POST /orders alone: no broker answers, so that nothing
// relays meanwhile, in none of the cases.
func measureIntake(ctx context.Context, e *env) error {
	for _, n := range []int{64, 8, 1} {
		orders := e.amount(map[int]int{64: 12_000, 8: 3_000, 1: 800}[n])
		r, err := measure(ctx, e, []benchCase{
			{"pillarbox", intakeOf(e, "postgres", n, orders)},
			{"bare group commit", bareIntake(e, n, orders, groups)},
			{"one pgx batch per request", bareIntake(e, n, orders/2, batches)},
			{"one transaction per request", bareIntake(e, n, orders/4, transactions)},
		})
		if err != nil {
			return err
		}
		if n < 64 {
			e.atLeast("T1", fmt.Sprintf("post-orders-%d-to-batch-per-request", n), r.ratio("pillarbox", "one pgx batch per request", "rate"), 1)
			continue
		}
		e.atLeast("T1", "post-orders-64", r.ratio("pillarbox", "bare group commit", "rate"), 0.7)
		e.atLeast("T1", "post-orders-64-to-transaction-per-request", r.ratio("pillarbox", "one transaction per request", "rate"), 3)
		e.atMost("T1", "post-orders-64-p99", r.ratio("pillarbox", "bare group commit", "p99_ms"), 2.5)
	}
	orders := e.amount(8_000)
	r, err := measure(ctx, e, []benchCase{
		{"pillarbox, SQLite", intakeOf(e, "sqlite", 64, orders)},
		{"one transaction per request, SQLite", bareSQLite(e, 64, orders/8)},
	})
	if err != nil {
		return err
	}
	e.atLeast("T1", "post-orders-64-sqlite", r.ratio("pillarbox, SQLite", "one transaction per request, SQLite", "rate"), 5)
	return nil
}

const warmUp = 300 // requests before the measured ones

func (e *env) twice(ctx context.Context, h http.Handler, n, orders int) (figures, error) {
	if _, err := post(ctx, h, n, warmUp); err != nil {
		return nil, err
	}
	cost, err := e.spend(ctx)
	if err != nil {
		return nil, err
	}
	f, err := post(ctx, h, n, orders)
	if err != nil {
		return nil, err
	}
	return f, cost(f, orders)
}

func intakeOf(e *env, engine string, n, orders int) func(context.Context) (figures, error) {
	return func(ctx context.Context) (f figures, err error) {
		db, _, done, err := e.open(ctx, engine, "store")
		if err != nil {
			return nil, err
		}
		defer done()
		nowhere, err := broker.Connect(broker.Config{URL: "nats://127.0.0.1:1"}, logs.Discard())
		if err != nil {
			return nil, err
		}
		defer nowhere.Close()
		s, err := storesvc.New(storesvc.Config{}, storesvc.Deps{DB: db, Broker: nowhere, Log: logs.Discard()})
		if err != nil {
			return nil, err
		}
		running, stop := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- s.Run(running) }()
		f, err = e.twice(ctx, s.Handler(), n, orders)
		stop()
		if failed := <-ended; err == nil {
			err = failed
		}
		return f, err
	}
}

// row is what every bare case writes of one order: the rows that ours writes.
type row struct {
	id, event, key string
	payload        []byte
	total          int64
	body           placement
}

type placement struct {
	Customer struct {
		Email string `json:"email"`
		Name  string `json:"name"`
	} `json:"customer"`
	Currency  string          `json:"currency"`
	Items     json.RawMessage `json:"items"`
	Reference string          `json:"reference"`
}

// bare decodes an order and stores it; put is the way of storing.
func bare(put func(ctx context.Context, r row) error) http.Handler {
	router := chi.NewRouter()
	router.Post("/orders", func(w http.ResponseWriter, request *http.Request) {
		r := row{id: uuid.NewString(), event: uuid.NewString(), key: request.Header.Get("Idempotency-Key"), total: 3800}
		if err := json.NewDecoder(http.MaxBytesReader(w, request.Body, 1<<20)).Decode(&r.body); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		var err error
		r.payload, err = json.Marshal(map[string]any{
			"id": r.event, "source": "/bench", "type": "order.placed.v1", "time": time.Now(), "subject": r.id, "orderversion": 1, "data": r.body,
		})
		if err == nil {
			err = put(request.Context(), r)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Location", "/orders/"+r.id)
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write(r.payload) // a client that is gone
	})
	return router
}

const (
	insertOrder = `INSERT INTO orders (id, version, status, customer_email, customer_name, locale, currency, items,
		total_minor, reference, placed_at, updated_at) VALUES ($1, 1, 'placed', $2, $3, '', $4, $5, $6, $7, $8, $8)`
	insertEvent  = `INSERT INTO events (id, order_id, version, type, payload) VALUES ($1, $2, 1, 'order.placed.v1', $3)`
	insertOutbox = `INSERT INTO outbox (seq, event_id, order_id, size) SELECT seq, id, order_id, octet_length(payload) FROM events WHERE id = $1`
	insertKey    = `INSERT INTO idempotency (caller, key, fingerprint, order_id, status, response, created_at)
		VALUES ('', $1, '\x00', $2, 201, $3, $4) ON CONFLICT DO NOTHING`
)

// steps are the statements of one order.
func (r row) steps() []step {
	now := database.Micros(time.Now())
	return []step{
		{insertOrder, []any{r.id, r.body.Customer.Email, r.body.Customer.Name, r.body.Currency, string(r.body.Items), r.total, r.body.Reference, now}},
		{insertEvent, []any{r.event, r.id, r.payload}},
		{insertOutbox, []any{r.event}},
		{insertKey, []any{r.key, r.id, r.payload, now}},
	}
}

type step struct {
	sql  string
	args []any
}

// A way of storing; stop ends its goroutines.
type way func(p *pgxpool.Pool) (put func(context.Context, row) error, stop func())

func bareIntake(e *env, n, orders int, w way) func(context.Context) (figures, error) {
	return func(ctx context.Context) (figures, error) {
		url, drop, err := e.postgres(ctx, "store")
		if err != nil {
			return nil, err
		}
		defer drop()
		p, err := pool(ctx, url, "store", 8)
		if err != nil {
			return nil, err
		}
		defer p.Close()
		put, stop := w(p)
		defer stop()
		return e.twice(ctx, bare(put), n, orders)
	}
}

func transactions(p *pgxpool.Pool) (func(context.Context, row) error, func()) {
	return func(ctx context.Context, r row) error {
		return pgx.BeginFunc(ctx, p, func(tx pgx.Tx) error {
			for _, s := range r.steps() {
				if _, err := tx.Exec(ctx, s.sql, s.args...); err != nil {
					return err
				}
			}
			return nil
		})
	}, func() {}
}

func batches(p *pgxpool.Pool) (func(context.Context, row) error, func()) {
	return func(ctx context.Context, r row) error {
		var b pgx.Batch // one implicit transaction
		for _, s := range r.steps() {
			b.Queue(s.sql, s.args...)
		}
		return p.SendBatch(ctx, &b).Close()
	}, func() {}
}

type waiting struct {
	row
	done chan error
}

// groups commits what waits, at most 50, with one statement per table.
func groups(p *pgxpool.Pool) (func(context.Context, row) error, func()) {
	in := make(chan waiting, 1024)
	go func() {
		for first := range in {
			group := append(make([]waiting, 0, 50), first)
		fill:
			for len(group) < cap(group) {
				select {
				case more := <-in:
					group = append(group, more)
				default:
					break fill
				}
			}
			err := commit(p, group)
			for _, w := range group {
				w.done <- err
			}
		}
	}()
	return func(_ context.Context, r row) error {
		w := waiting{r, make(chan error, 1)}
		in <- w
		return <-w.done
	}, func() { close(in) }
}

func commit(p *pgxpool.Pool, group []waiting) error {
	var ids, events, keys, emails, names, currencies, items, references []string
	var totals []int64
	var payloads [][]byte
	for _, w := range group {
		ids, events, keys = append(ids, w.id), append(events, w.event), append(keys, w.key)
		emails, names = append(emails, w.body.Customer.Email), append(names, w.body.Customer.Name)
		currencies, items = append(currencies, w.body.Currency), append(items, string(w.body.Items))
		references, totals, payloads = append(references, w.body.Reference), append(totals, w.total), append(payloads, w.payload)
	}
	now := database.Micros(time.Now())
	var b pgx.Batch
	b.Queue(`INSERT INTO orders (id, version, status, customer_email, customer_name, locale, currency, items, total_minor, reference, placed_at, updated_at)
		SELECT i, 1, 'placed', e, n, '', c, t, m, r, $8::bigint, $8::bigint
		FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::text[]) AS u(i, e, n, c, t, m, r)`,
		ids, emails, names, currencies, items, totals, references, now)
	b.Queue(`WITH e AS (INSERT INTO events (id, order_id, version, type, payload)
			SELECT i, o, 1, 'order.placed.v1', p FROM unnest($1::text[], $2::text[], $3::bytea[]) AS u(i, o, p)
			RETURNING seq, id, order_id, octet_length(payload) AS size)
		INSERT INTO outbox (seq, event_id, order_id, size) SELECT seq, id, order_id, size FROM e`, events, ids, payloads)
	b.Queue(`INSERT INTO idempotency (caller, key, fingerprint, order_id, status, response, created_at)
		SELECT '', k, '\x00', o, 201, p, $4::bigint FROM unnest($1::text[], $2::text[], $3::bytea[]) AS u(k, o, p)
		ON CONFLICT DO NOTHING`, keys, ids, payloads, now)
	return p.SendBatch(context.Background(), &b).Close()
}

// bareSQLite writes one order per transaction, as durably as we do.
func bareSQLite(e *env, n, orders int) func(context.Context) (figures, error) {
	return func(ctx context.Context) (figures, error) {
		db, _, done, err := e.open(ctx, "sqlite", "store")
		if err != nil {
			return nil, err
		}
		defer done()
		return e.twice(ctx, bare(func(ctx context.Context, r row) error {
			return db.Tx(ctx, func(ctx context.Context, tx *database.Tx) error {
				for _, s := range r.steps() {
					if s.sql == insertKey { // SQLite writes an empty blob otherwise
						s.sql = `INSERT INTO idempotency (caller, key, fingerprint, order_id, status, response, created_at)
							VALUES ('', $1, x'00', $2, 201, $3, $4) ON CONFLICT DO NOTHING`
					}
					if _, err := tx.ExecContext(ctx, s.sql, s.args...); err != nil {
						return err
					}
				}
				return nil
			})
		}), n, orders)
	}
}
