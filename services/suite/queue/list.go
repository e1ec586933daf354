package queue

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/pillarbox/pillarbox/services/suite/terminal"
	"github.com/pillarbox/pillarbox/shared/broker"
)

// listCommand is "queue ls".
type listCommand struct {
	Queue    string `arg:"" optional:"" help:"Only this queue."`
	statuses `kong:"-"`
}

// Run lists.
func (c *listCommand) Run(all *Commands) error { return all.run(c.do) }

func (c *listCommand) do(ctx context.Context, w *work) error {
	queues, err := c.queues(ctx, w)
	if err != nil {
		return err
	}
	rows := [][]string{{"QUEUE", "CONSUMER", "DEPTH", "IN FLIGHT", "REDELIVERED", "OLDEST", "STATE"}}
	for _, q := range queues {
		record, err := w.queueRecord(ctx, q)
		if err != nil {
			return err
		}
		if w.json {
			if err := w.Object(record); err != nil {
				return err
			}
			continue
		}
		if len(record.Consumers) == 0 {
			rows = append(rows, []string{record.Queue, "-", number(record.Messages), "-", "-", record.oldest(), "no consumer"})
		}
		for _, r := range record.Consumers {
			rows = append(rows, append([]string{record.Queue}, r.row()...))
		}
	}
	switch {
	case w.json:
		return nil
	case len(queues) == 0:
		w.Note("there is no queue")
		return nil
	}
	return w.Table(rows)
}

func (c *listCommand) queues(ctx context.Context, w *work) ([]broker.QueueInfo, error) {
	if c.Queue == "" {
		return w.Queues(ctx)
	}
	q, err := w.lookUp(ctx, c.Queue)
	return []broker.QueueInfo{q}, err
}

// queueRecord is a queue in JSON.
type queueRecord struct {
	Queue         string           `json:"queue"`
	Subjects      []string         `json:"subjects"`
	Messages      uint64           `json:"messages"`
	Bytes         uint64           `json:"bytes"`
	MaxBytes      int64            `json:"max_bytes"` // 0: unlimited
	FirstSequence uint64           `json:"first_sequence"`
	LastSequence  uint64           `json:"last_sequence"`
	OldestAt      *time.Time       `json:"oldest_at"`
	OldestAge     *float64         `json:"oldest_age_seconds"`
	Generation    int64            `json:"generation"`
	Replicas      int              `json:"replicas"`
	CreatedAt     time.Time        `json:"created_at"`
	Consumers     []consumerRecord `json:"consumers"`
}

// consumerRecord is a consumer in JSON.
type consumerRecord struct {
	Consumer    string     `json:"consumer"`
	Durable     string     `json:"durable"`
	Generation  int64      `json:"generation"`
	Topics      []string   `json:"topics"` // empty: the whole queue
	Depth       uint64     `json:"depth"`
	InFlight    int        `json:"in_flight"`
	Redelivered int        `json:"redelivered"`
	OldestAt    *time.Time `json:"oldest_at"` // of what it has not acknowledged
	OldestAge   *float64   `json:"oldest_age_seconds"`
	Readers     int        `json:"readers"`
	AckFloor    uint64     `json:"ack_floor"`
	Delivered   uint64     `json:"delivered"`
	PausedUntil *time.Time `json:"paused_until"`
	CreatedAt   time.Time  `json:"created_at"`
}

// queueRecord makes the record of a queue. It reads one message per consumer that has something to do.
func (w *work) queueRecord(ctx context.Context, q broker.QueueInfo) (queueRecord, error) {
	r := queueRecord{
		Queue: q.Name, Subjects: q.Subjects, Messages: q.Messages, Bytes: q.Bytes, MaxBytes: q.MaxBytes,
		FirstSequence: q.FirstSeq, LastSequence: q.LastSeq, Generation: q.Generation, Replicas: q.Replicas,
		CreatedAt: q.Created, Consumers: []consumerRecord{},
	}
	if q.Messages > 0 {
		r.OldestAt, r.OldestAge = age(q.Oldest)
	}
	for _, i := range q.Consumers {
		one := consumerRecord{
			Consumer: i.Group, Durable: i.Durable, Generation: i.Generation, Topics: i.Topics, Depth: i.Depth,
			InFlight: i.InFlight, Redelivered: i.Redelivered, Readers: i.Readers, AckFloor: i.AckFloor,
			Delivered: i.Delivered, CreatedAt: i.Created,
		}
		if one.Topics == nil {
			one.Topics = []string{}
		}
		at, found, err := w.Oldest(ctx, i)
		if err != nil {
			return r, fmt.Errorf("age of the oldest message of %s: %w", i.Durable, err)
		}
		if found {
			one.OldestAt, one.OldestAge = age(at)
		}
		if !i.PausedUntil.IsZero() {
			one.PausedUntil = &i.PausedUntil
		}
		r.Consumers = append(r.Consumers, one)
	}
	return r, nil
}

// age is a time with the seconds since, by this machine's clock.
func age(at time.Time) (*time.Time, *float64) {
	seconds := max(time.Since(at), 0).Round(time.Millisecond).Seconds()
	return &at, &seconds
}

func shownAge(at *time.Time) string {
	if at == nil {
		return "-"
	}
	return terminal.Ago(time.Since(*at))
}

func (r queueRecord) oldest() string { return shownAge(r.OldestAt) }

// row are the consumer's columns in a table.
func (r consumerRecord) row() []string {
	return []string{
		r.Consumer, number(r.Depth), strconv.Itoa(r.InFlight), strconv.Itoa(r.Redelivered), shownAge(r.OldestAt), r.state(),
	}
}

func (r consumerRecord) state() string {
	switch {
	case r.PausedUntil != nil && r.PausedUntil.Year() >= untilResumed.Year():
		return "paused"
	case r.PausedUntil != nil:
		return "paused for " + terminal.Ago(time.Until(*r.PausedUntil))
	case r.Readers == 0 && r.InFlight == 0:
		return "nobody reads"
	}
	return "running"
}

func number(n uint64) string { return strconv.FormatUint(n, 10) }
