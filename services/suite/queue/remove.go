package queue

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/outbox"
)

const (
	// A program that reads asks again at least every second, and shows no request in between; one that has
	// ended leaves its last request standing for as long.
	quietFor    = 1500 * time.Millisecond
	quietWithin = 5 * time.Second
	quietPoll   = 50 * time.Millisecond
)

// removeCommand is "queue rm".
type removeCommand struct {
	Queue    string `arg:"" help:"Queue."`
	Consumer string `name:"consumer" short:"c" placeholder:"NAME" help:"Remove only this consumer: its position, and its place in the store's list, so that the queue is purged without it."`
	Yes      bool   `name:"yes" short:"y" help:"Do not ask."`
	statuses `kong:"-"`
}

// Run removes.
func (c *removeCommand) Run(all *Commands) error {
	return all.run(func(ctx context.Context, w *work) error {
		w.yes = c.Yes
		q, err := w.lookUp(ctx, c.Queue)
		if err != nil {
			return err
		}
		if c.Consumer != "" {
			return c.removeConsumer(ctx, w, q)
		}
		return c.removeQueue(ctx, w, q)
	})
}

func (c *removeCommand) removeQueue(ctx context.Context, w *work, q broker.QueueInfo) error {
	text := fmt.Sprintf("Remove queue %s with its %d messages and %d consumers for good.", q.Name, q.Messages, len(q.Consumers))
	if ofStore(q) {
		text += " The store makes it anew and publishes again what its horizon holds."
	}
	if err := w.confirm(ctx, "%s", text); err != nil {
		return err
	}
	if err := w.RemoveQueue(ctx, q.Name); err != nil {
		return err
	}
	if w.json {
		return w.Object(removed{Queue: q.Name})
	}
	return w.Line("queue %s removed", q.Name)
}

// removed is what rm did, in JSON.
type removed struct {
	Queue        string   `json:"queue"`
	Consumer     string   `json:"consumer,omitempty"`
	Durables     []string `json:"durables,omitempty"`
	Deregistered bool     `json:"deregistered"`
}

// removeConsumer leaves the store's list first: a durable without a place there only costs a little, a place
// without a durable stops the purge.
func (c *removeCommand) removeConsumer(ctx context.Context, w *work, q broker.QueueInfo) error {
	done := removed{Queue: q.Name, Consumer: c.Consumer}
	found := consumersNamed(q, c.Consumer)
	if len(found) > 0 {
		done.Consumer = found[0].Group // also when a durable was named
	}
	if len(found) == 0 && !ofStore(q) {
		_, err := consumerNamed(q, c.Consumer)
		return err
	}
	if err := c.nobodyReads(ctx, w, found); err != nil {
		return err
	}
	var waiting uint64
	for _, i := range found {
		waiting += i.Depth + uint64(i.InFlight)
		done.Durables = append(done.Durables, i.Durable)
	}
	err := w.confirm(ctx, "Remove consumer %s of %s for good: it has not acknowledged %d messages, and the queue keeps none for it any more.",
		done.Consumer, q.Name, waiting)
	if err != nil {
		return err
	}
	// A durable that was named and is not the group's only one leaves the group its place.
	if ofStore(q) && len(found) == len(consumersNamed(q, done.Consumer)) {
		if done.Deregistered, err = c.deregister(ctx, w, q.Name, done.Consumer); err != nil {
			return err
		}
	}
	for _, name := range done.Durables {
		if err := w.RemoveConsumer(ctx, q.Name, name); err != nil && !errors.Is(err, broker.ErrNoConsumer) {
			return err
		}
	}
	if len(found) == 0 && !done.Deregistered {
		_, err := consumerNamed(q, c.Consumer)
		return err
	}
	if w.json {
		return w.Object(done)
	}
	if done.Deregistered {
		return w.Line("consumer %s of %s removed, and from the store's list", done.Consumer, q.Name)
	}
	return w.Line("consumer %s of %s removed", done.Consumer, q.Name)
}

// ofStore tells a stream that a store's relay looks after: it has a generation.
func ofStore(q broker.QueueInfo) bool { return q.Generation > 0 }

// nobodyReads makes sure that the consumer is not in use: its program would make and register it again. One that
// waits for its database asks for nothing, and is not seen.
func (c *removeCommand) nobodyReads(ctx context.Context, w *work, found []broker.ConsumerInfo) error {
	before := moved(found)
	if before == (activity{}) {
		return nil // only tools read it, and they make none again
	}
	deadline, quietSince := time.Now().Add(quietWithin), time.Now()
	for time.Since(quietSince) < quietFor {
		if time.Now().After(deadline) {
			return fmt.Errorf("a program reads consumer %q and would make it again: stop that first", c.Consumer)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(quietPoll):
		}
		q, err := w.lookUp(ctx, c.Queue)
		if err != nil {
			return err
		}
		now := moved(consumersNamed(q, c.Consumer))
		if now.readers > 0 || now != before {
			quietSince = time.Now()
		}
		before = now
	}
	return nil
}

// activity is by what a reader shows.
type activity struct {
	durables, readers int
	moves             uint64
}

func moved(found []broker.ConsumerInfo) (a activity) {
	for _, i := range found {
		if !i.Tool {
			a.durables++
			a.readers += i.Readers
			a.moves += i.Delivered + i.AckFloor
		}
	}
	return a
}

// deregister takes the consumer off the store's list: by asking the store, or in its database when this
// process holds the folder.
func (c *removeCommand) deregister(ctx context.Context, w *work, queue, name string) (was bool, err error) {
	if w.folder == "" {
		was, err = outbox.Deregister(ctx, w.Conn, queue, name)
		if errors.Is(err, outbox.ErrNoStore) {
			err = fmt.Errorf("%w: start it, or the queue would wait for %s for ever", err, name)
		}
		return was, err
	}
	path := filepath.Join(w.folder, "store.db")
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	db, err := database.Open("sqlite:"+path, database.Options{Schema: "store"})
	if err != nil {
		return false, fmt.Errorf("store's database: %w", err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	return outbox.RemoveConsumer(ctx, db, name)
}
