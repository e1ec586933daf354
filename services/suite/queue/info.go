package queue

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// infoCommand is "queue info".
type infoCommand struct {
	Queue    string `arg:"" help:"Queue."`
	statuses `kong:"-"`
}

// Run shows.
func (c *infoCommand) Run(all *Commands) error { return all.run(c.do) }

func (c *infoCommand) do(ctx context.Context, w *work) error {
	q, err := w.lookUp(ctx, c.Queue)
	if err != nil {
		return err
	}
	r, err := w.queueRecord(ctx, q)
	if err != nil {
		return err
	}
	if w.json {
		return w.Object(r)
	}
	limit := "unlimited"
	if r.MaxBytes > 0 {
		limit = fmt.Sprintf("%d (%.1f %% used)", r.MaxBytes, 100*float64(r.Bytes)/float64(r.MaxBytes))
	}
	facts := [][]string{
		{"queue", r.Queue},
		{"subjects", strings.Join(r.Subjects, ", ")},
		{"messages", number(r.Messages)},
		{"sequences", number(r.FirstSequence) + " to " + number(r.LastSequence)},
		{"bytes", number(r.Bytes)},
		{"max bytes", limit},
		{"oldest", r.oldest()},
		{"replicas", strconv.Itoa(r.Replicas)},
		{"generation", strconv.FormatInt(r.Generation, 10)},
		{"made", r.CreatedAt.Format(time.RFC3339)},
	}
	if err := w.Table(facts); err != nil || len(r.Consumers) == 0 {
		return err
	}
	rows := [][]string{{
		"CONSUMER", "DEPTH", "IN FLIGHT", "REDELIVERED", "OLDEST", "STATE", "DURABLE", "TOPICS", "ACKED TO", "GIVEN TO", "READERS",
	}}
	for _, i := range r.Consumers {
		topics := strings.Join(i.Topics, ", ")
		if topics == "" {
			topics = "all"
		}
		rows = append(rows, append(i.row(), i.Durable, topics, number(i.AckFloor), number(i.Delivered), strconv.Itoa(i.Readers)))
	}
	if err := w.Bytes([]byte("\n")); err != nil {
		return err
	}
	return w.Table(rows)
}
