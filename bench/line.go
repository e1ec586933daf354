package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pillarbox/pillarbox/services/audit/auditsvc"
	"github.com/pillarbox/pillarbox/services/loyalty/loyaltysvc"
	"github.com/pillarbox/pillarbox/services/mailer/mailersvc"
	"github.com/pillarbox/pillarbox/services/store/storesvc"
	suitebench "github.com/pillarbox/pillarbox/services/suite/bench"
	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/events"
	"github.com/pillarbox/pillarbox/shared/logs"
	"github.com/pillarbox/pillarbox/shared/outbox"
)

// measureLine lets the effects of waiting orders happen, all of them and one service's alone.
func measureLine(ctx context.Context, e *env) error {
	orders := e.amount(20_000)
	r, err := measure(ctx, e, []benchCase{
		{"4 KB write, fsync, rename, 10 goroutines", renames(e, e.amount(5_000))},
		{"whole line, one of each", effects(e, orders, true, "mailer", "audit", "loyalty")},
		{"mailer alone", effects(e, orders, false, "mailer")},
		{"audit alone", effects(e, orders, false, "audit")},
		{"loyalty alone", effects(e, orders, false, "loyalty")},
	})
	if err != nil {
		return err
	}
	e.atLeast("T4", "whole-line-to-fsynced-renames", r.ratio("whole line, one of each", "4 KB write, fsync, rename, 10 goroutines", "rate"), 0.4)
	e.atLeast("T4", "audit-alone-per-10000-a-second", r.median("audit alone", "rate")/10_000, 1)
	e.atLeast("T4", "loyalty-alone-per-5000-a-second", r.median("loyalty alone", "rate")/5_000, 1)
	return nil
}

// renames is the limit of the disk for a mailer that did nothing else.
func renames(e *env, files int) func(context.Context) (figures, error) {
	return func(context.Context) (figures, error) {
		dir, err := e.folder("renames")
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(dir)
		start := time.Now()
		err = suitebench.WriteFiles(dir, files, make([]byte, 4096))
		return figures{"rate": float64(files) / time.Since(start).Seconds()}, err
	}
}

// service is what all the …svc packages have.
type service interface {
	Run(ctx context.Context) error
}

// effects measures how long the named services need for waiting orders: which wait in the outbox,
// so that the relay has its share, or else in the stream.
func effects(e *env, orders int, inOutbox bool, names ...string) func(context.Context) (figures, error) {
	return func(ctx context.Context) (f figures, err error) {
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
		if err := place(ctx, db, orders); err != nil {
			return nil, err
		}
		pickup, err := e.folder("pickup")
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(pickup)
		store, err := storesvc.New(storesvc.Config{}, storesvc.Deps{DB: db, Broker: conn, Log: logs.Discard()})
		if err != nil {
			return nil, err
		}
		services, databases, closeAll, err := subscribers(ctx, e, conn, pickup, names)
		if err != nil {
			return nil, err
		}
		defer closeAll()
		running, end := context.WithCancel(ctx)
		var group sync.WaitGroup
		defer func() { end(); group.Wait() }()
		run := func(s service) { group.Go(func() { _ = s.Run(running) }) } // a failure shows as one that takes too long
		if !inOutbox {
			run(store)
			if err := published(ctx, conn, orders); err != nil {
				return nil, err
			}
		}
		cost, err := e.spend(ctx)
		if err != nil {
			return nil, err
		}
		start := time.Now()
		if inOutbox {
			run(store)
		}
		for _, s := range services {
			run(s)
		}
		for n, name := range names {
			err := until(ctx, 10*time.Minute, func() (bool, error) { return effected(ctx, name, databases[n], pickup, orders) })
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
		}
		f = figures{"rate": float64(orders) / time.Since(start).Seconds()}
		return f, cost(f, orders)
	}
}

func subscribers(ctx context.Context, e *env, conn *broker.Conn, pickup string, names []string) (
	all []service, databases []*database.DB, closeAll func(), err error,
) {
	var closers []func()
	closeAll = func() {
		for _, c := range closers {
			c()
		}
	}
	for _, name := range names {
		db, _, done, err := e.open(ctx, "postgres", name)
		if err != nil {
			closeAll()
			return nil, nil, nil, err
		}
		closers, databases = append(closers, done), append(databases, db)
		var s service
		switch name {
		case "mailer":
			s, err = mailersvc.New(mailersvc.Config{Pickup: pickup}, mailersvc.Deps{DB: db, Broker: conn, Log: logs.Discard()})
		case "audit":
			s, err = auditsvc.New(auditsvc.Config{}, auditsvc.Deps{DB: db, Broker: conn, Log: logs.Discard()})
		case "loyalty":
			s, err = loyaltysvc.New(loyaltysvc.Config{}, loyaltysvc.Deps{DB: db, Broker: conn, Log: logs.Discard()})
		}
		if err != nil {
			closeAll()
			return nil, nil, nil, err
		}
		all = append(all, s)
	}
	return all, databases, closeAll, nil
}

// effected reports whether each order had its effect.
func effected(ctx context.Context, name string, db *database.DB, pickup string, orders int) (bool, error) {
	if name == "mailer" {
		select { // a folder of this size is not read more often
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
		}
		names, err := filepath.Glob(filepath.Join(pickup, "*.eml"))
		return len(names) >= orders, err
	}
	var n int
	table := map[string]string{"audit": "entries", "loyalty": "ledger"}[name]
	err := db.Read().QueryRowContext(ctx, `SELECT count(*) FROM `+table).Scan(&n)
	return n >= orders, err
}

func published(ctx context.Context, conn *broker.Conn, orders int) error {
	return until(ctx, 5*time.Minute, func() (bool, error) {
		s, err := conn.JS.Stream(ctx, events.StreamOrders)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		return s.CachedInfo().State.Msgs >= uint64(orders), nil
	})
}

// place appends orders with their events, as the store does, of many customers.
func place(ctx context.Context, db *database.DB, orders int) error {
	for n := 0; n < orders; n += 500 {
		batch := make([]outbox.Row, min(500, orders-n))
		for i := range batch {
			row, err := placed(n + i)
			if err != nil {
				return err
			}
			batch[i] = row
		}
		if err := db.Batch(ctx, outbox.Statements(db.Dialect(), batch)); err != nil {
			return err
		}
	}
	return nil
}

func placed(n int) (outbox.Row, error) {
	e, payload, err := suitebench.Placed(n)
	return outbox.Row{Event: e, Payload: payload}, err
}
