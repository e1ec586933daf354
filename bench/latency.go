package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/pillarbox/pillarbox/services/mailer/mailersvc"
	"github.com/pillarbox/pillarbox/services/store/storesvc"
	"github.com/pillarbox/pillarbox/services/suite/e2e"
	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/events"
	"github.com/pillarbox/pillarbox/shared/logs"
)

// perSecond is the rate of the latency measurements.
const perSecond = 200

// measureLatency sends at a steady rate, whatever the answers do, and takes the time
// from when a message was due to when its handler began, or its mail was in the folder.
func measureLatency(ctx context.Context, e *env) error {
	n := e.amount(perSecond * 8)
	r, err := measure(ctx, e, []benchCase{
		{"pillarbox, POST to handler", lineLatency(e, n, false)},
		{"pillarbox, POST to mail in the folder", lineLatency(e, n, true)},
		{"River, defaults", riverLatency(e, n, 0)},
		{"River, fetch cooldown 5 ms", riverLatency(e, n, 5*time.Millisecond)},
		{"watermill-sql, poll 50 ms", sqlLatency(e, n, 50*time.Millisecond)},
		{"watermill-sql, poll 1 s (default)", sqlLatency(e, n, 0)},
	})
	if err != nil {
		return err
	}
	e.atMost("T3", "post-to-handler-p50-of-5ms", r.median("pillarbox, POST to handler", "p50_ms")/5, 1)
	e.atMost("T3", "post-to-handler-p99-of-20ms", r.median("pillarbox, POST to handler", "p99_ms")/20, 1)
	e.atMost("T3", "post-to-mail-p50-of-15ms", r.median("pillarbox, POST to mail in the folder", "p50_ms")/15, 1)
	e.atMost("T3", "post-to-mail-p99-of-50ms", r.median("pillarbox, POST to mail in the folder", "p99_ms")/50, 1)
	return nil
}

// recorder keeps when each message was due and when it arrived.
type recorder struct {
	mu       sync.Mutex // guards all
	due      map[string]time.Time
	arrived  map[string]time.Time
	complete chan struct{}
	want     int
}

func newRecorder(want int) *recorder {
	return &recorder{due: map[string]time.Time{}, arrived: map[string]time.Time{}, complete: make(chan struct{}), want: want}
}

func (r *recorder) sent(key string, due time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.due[key] = due
}

func (r *recorder) here(key string, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, twice := r.arrived[key]; twice {
		return
	}
	if r.arrived[key] = at; len(r.arrived) == r.want {
		close(r.complete)
	}
}

// drive sends n messages at the rate, each from a goroutine of its own, and waits until all have arrived.
func (r *recorder) drive(ctx context.Context, n int, send func(n int, due time.Time) error) (figures, error) {
	errs := make(chan error, n)
	start := time.Now()
	for i := range n {
		due := start.Add(time.Duration(i) * time.Second / perSecond)
		time.Sleep(time.Until(due))
		go func() {
			if err := send(i, due); err != nil {
				errs <- err
			}
		}()
	}
	select {
	case <-r.complete:
	case err := <-errs:
		return nil, err
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(time.Minute):
		return nil, errors.New("not everything arrived within a minute")
	}
	var millis []float64
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, at := range r.arrived {
		millis = append(millis, at.Sub(r.due[key]).Seconds()*1000)
	}
	return figures{"p50_ms": quantile(millis, 0.5), "p99_ms": quantile(millis, 0.99)}, nil
}

// lineLatency is over HTTP, PostgreSQL, the relay and JetStream, to a Watermill subscriber or to the mailer's folder.
func lineLatency(e *env, n int, mails bool) func(context.Context) (figures, error) {
	return func(ctx context.Context) (figures, error) {
		_, conn, stop, err := e.broker(ctx)
		if err != nil {
			return nil, err
		}
		defer stop()
		db, _, done, err := e.open(ctx, "postgres", "store")
		if err != nil {
			return nil, err
		}
		defer done()
		running, end := context.WithCancel(ctx)
		var group sync.WaitGroup
		defer func() { end(); group.Wait() }()
		store, err := storesvc.New(storesvc.Config{}, storesvc.Deps{DB: db, Broker: conn, Log: logs.Discard()})
		if err != nil {
			return nil, err
		}
		group.Go(func() { _ = store.Run(running) })
		// What came before the measurement is not in the recorder's count: it only warms up.
		warm, r := newRecorder(warmUp), newRecorder(n)
		current := struct {
			sync.Mutex
			*recorder
		}{recorder: warm}
		arrive := func(order string, at time.Time) {
			current.Lock()
			defer current.Unlock()
			current.here(order, at)
		}
		var watched func() error
		if mails {
			watched, err = mailer(ctx, e, conn, &group, running, arrive)
		} else {
			err = handler(conn, &group, running, arrive)
		}
		if err != nil {
			return nil, err
		}
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		server := &http.Server{Handler: store.Handler(), ReadHeaderTimeout: time.Minute}
		go func() { _ = server.Serve(listener) }() // ends at Close
		defer server.Close()
		client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100}}
		defer client.CloseIdleConnections()
		send := func(r *recorder) func(int, time.Time) error {
			return func(_ int, due time.Time) error {
				id, err := postOne(client, "http://"+listener.Addr().String()+"/orders")
				r.sent(id, due)
				return err
			}
		}
		if _, err := warm.drive(ctx, warmUp, send(warm)); err != nil {
			return nil, fmt.Errorf("warm up: %w", err)
		}
		current.Lock()
		current.recorder = r
		current.Unlock()
		f, err := r.drive(ctx, n, send(r))
		if watched != nil {
			err = errors.Join(err, watched())
		}
		return f, err
	}
}

func postOne(client *http.Client, url string) (id string, err error) {
	request, err := http.NewRequest(http.MethodPost, url, strings.NewReader(order))
	if err != nil {
		return "", err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Idempotency-Key", uuid.NewString())
	answer, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	var placed struct{ ID string }
	if err := json.NewDecoder(answer.Body).Decode(&placed); err != nil {
		return "", err
	}
	if answer.StatusCode != http.StatusCreated {
		return "", fmt.Errorf("the answer is %s", answer.Status)
	}
	return placed.ID, nil
}

func handler(conn *broker.Conn, group *sync.WaitGroup, running context.Context, arrive func(string, time.Time)) error {
	s, err := broker.NewSubscriber(conn, broker.SubscriberConfig{Group: "bench"})
	if err != nil {
		return err
	}
	messages, err := s.Subscribe(running, events.TopicOrders)
	if err != nil {
		return err
	}
	group.Go(func() {
		for m := range messages {
			at := time.Now()
			if event, err := events.Decode(m.Payload); err == nil {
				arrive(event.Subject, at)
			}
			m.Ack()
		}
	})
	return nil
}

// mailer runs one whose folder is watched; the kernel tells when a mail is there.
func mailer(ctx context.Context, e *env, conn *broker.Conn, group *sync.WaitGroup, running context.Context, arrive func(string, time.Time)) (func() error, error) {
	db, _, done, err := e.open(ctx, "postgres", "mailer")
	if err != nil {
		return nil, err
	}
	pickup, err := e.folder("pickup")
	if err != nil {
		return nil, err
	}
	s, err := mailersvc.New(mailersvc.Config{Pickup: pickup}, mailersvc.Deps{DB: db, Broker: conn, Log: logs.Discard()})
	if err != nil {
		return nil, err
	}
	watch, err := e2e.WatchAppearance(pickup, "", 0)
	if err != nil {
		return nil, err
	}
	group.Go(func() { defer done(); _ = s.Run(running) })
	group.Go(func() {
		for seen := 0; running.Err() == nil; time.Sleep(5 * time.Millisecond) {
			mails, _ := watch.Mails() // Stop reports its error
			for _, m := range mails[seen:] {
				arrive(m.Order, m.Appeared)
			}
			seen = len(mails)
		}
	})
	return watch.Stop, nil
}

type job struct {
	N    int    `json:"n"`
	Body string `json:"body"`
}

func (job) Kind() string { return "latency" }

type jobWorker struct {
	river.WorkerDefaults[job]
	r *recorder
}

func (w *jobWorker) Work(_ context.Context, j *river.Job[job]) error {
	w.r.here(strconv.Itoa(j.Args.N), time.Now())
	return nil
}

// text is a body of the size of an order's event.
var text = strings.Repeat("0123456789", 70)

func riverLatency(e *env, n int, cooldown time.Duration) func(context.Context) (figures, error) {
	return func(ctx context.Context) (figures, error) {
		p, drop, err := peerPool(ctx, e)
		if err != nil {
			return nil, err
		}
		defer drop()
		quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
		migrator, err := rivermigrate.New(riverpgxv5.New(p), &rivermigrate.Config{Logger: quiet})
		if err != nil {
			return nil, err
		}
		if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
			return nil, err
		}
		r := newRecorder(n)
		workers := river.NewWorkers()
		river.AddWorker(workers, &jobWorker{r: r})
		c, err := river.NewClient(riverpgxv5.New(p), &river.Config{
			Logger: quiet, Workers: workers, FetchCooldown: cooldown,
			Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 100}},
		})
		if err != nil {
			return nil, err
		}
		if err := c.Start(ctx); err != nil {
			return nil, err
		}
		defer func() { _ = c.Stop(context.WithoutCancel(ctx)) }()
		time.Sleep(time.Second) // its listener
		return r.drive(ctx, n, func(i int, due time.Time) error {
			r.sent(strconv.Itoa(i), due)
			return pgx.BeginFunc(ctx, p, func(tx pgx.Tx) error {
				_, err := c.InsertTx(ctx, tx, job{i, text}, nil)
				return err
			})
		})
	}
}

func sqlLatency(e *env, n int, poll time.Duration) func(context.Context) (figures, error) {
	return func(ctx context.Context) (figures, error) {
		p, drop, err := peerPool(ctx, e)
		if err != nil {
			return nil, err
		}
		defer drop()
		schema := wmsql.DefaultPostgreSQLSchema{}
		s, err := wmsql.NewSubscriber(wmsql.BeginnerFromPgx(p), wmsql.SubscriberConfig{
			PollInterval: poll, SchemaAdapter: schema, OffsetsAdapter: wmsql.DefaultPostgreSQLOffsetsAdapter{}, InitializeSchema: true,
		}, watermill.NopLogger{})
		if err != nil {
			return nil, err
		}
		defer s.Close()
		messages, err := s.Subscribe(ctx, "latency")
		if err != nil {
			return nil, err
		}
		r := newRecorder(n)
		go func() {
			for m := range messages {
				r.here(m.Metadata.Get("n"), time.Now())
				m.Ack()
			}
		}()
		return r.drive(ctx, n, func(i int, due time.Time) error {
			r.sent(strconv.Itoa(i), due)
			return pgx.BeginFunc(ctx, p, func(tx pgx.Tx) error {
				out, err := wmsql.NewPublisher(wmsql.TxFromPgx(tx), wmsql.PublisherConfig{SchemaAdapter: schema}, watermill.NopLogger{})
				if err != nil {
					return err
				}
				m := message.NewMessage(watermill.NewUUID(), bytes.Clone([]byte(strconv.Quote(text))))
				m.Metadata.Set("n", strconv.Itoa(i))
				return out.Publish("latency", m)
			})
		})
	}
}

// peerPool is a pool on a database of its own.
func peerPool(ctx context.Context, e *env) (*pgxpool.Pool, func(), error) {
	url, drop, err := e.postgres(ctx, "store")
	if err != nil {
		return nil, nil, err
	}
	p, err := pool(ctx, url, "public", 40)
	if err != nil {
		drop()
		return nil, nil, err
	}
	return p, func() { p.Close(); drop() }, nil
}
