package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/pillarbox/pillarbox/services/mailer/mailersvc"
	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/events"
	"github.com/pillarbox/pillarbox/shared/logs"
	"github.com/pillarbox/pillarbox/shared/smtptest"
)

// perMail is what the mail server takes for each mail.
const perMail = 50 * time.Millisecond

// measureScaleOut hands mails to a mail server that is slow, with one replica and with three.
func measureScaleOut(ctx context.Context, e *env) error {
	mails := e.amount(2_000)
	r, err := measure(ctx, e, []benchCase{
		{"1 mailer", mailersOf(e, 1, mails)},
		{"3 mailers", mailersOf(e, 3, mails)},
	})
	if err != nil {
		return err
	}
	e.atLeast("T8", "three-mailers-to-one", r.ratio("3 mailers", "1 mailer", "rate"), 2.8)
	return nil
}

func mailersOf(e *env, replicas, mails int) func(context.Context) (figures, error) {
	return func(ctx context.Context) (figures, error) {
		server, conn, stop, err := e.broker(ctx)
		if err != nil {
			return nil, err
		}
		defer stop()
		if _, err := conn.EnsureStream(ctx, broker.StreamConfig{Name: events.StreamOrders, MaxBytes: 1 << 30}); err != nil {
			return nil, err
		}
		if err := publishOrders(ctx, conn, mails); err != nil {
			return nil, err
		}
		slow, err := smtptest.Start(smtptest.Config{Script: func(s smtptest.Step) smtptest.Answer {
			if s.Phase != "end" {
				return smtptest.Answer{}
			}
			done := make(chan struct{})
			time.AfterFunc(perMail, func() { close(done) })
			return smtptest.Answer{Wait: done}
		}})
		if err != nil {
			return nil, err
		}
		defer slow.Close()
		_, url, drop, err := e.open(ctx, "postgres", mailersvc.Name)
		if err != nil {
			return nil, err
		}
		defer drop()
		running, end := context.WithCancel(ctx)
		var group sync.WaitGroup
		defer func() { end(); group.Wait() }()
		start := time.Now()
		for range replicas {
			db, err := database.Open(url, database.Options{Schema: mailersvc.Name})
			if err != nil {
				return nil, err
			}
			own, err := broker.Connect(broker.Config{URL: server.ClientURL(), Token: server.Token()}, logs.Discard())
			if err != nil {
				return nil, err
			}
			m, err := mailersvc.New(mailersvc.Config{
				Sending: mailersvc.Sending{Transport: slow.URL("", "tls=off")},
			}, mailersvc.Deps{DB: db, Broker: own, Log: logs.Discard()})
			if err != nil {
				return nil, err
			}
			group.Go(func() {
				_ = m.Run(running) // a failure shows as one that takes too long
				own.Close()
				_ = db.Close()
			})
		}
		err = until(ctx, 5*time.Minute, func() (bool, error) { return len(slow.Taken()) >= mails, nil })
		return figures{"rate": float64(mails) / time.Since(start).Seconds()}, err
	}
}

func publishOrders(ctx context.Context, conn *broker.Conn, n int) error {
	p := broker.NewPublisher(conn, broker.PublisherConfig{})
	for left := n; left > 0; left -= 1000 {
		batch := make([]*message.Message, min(1000, left))
		for i := range batch {
			row, err := placed(left + i)
			if err != nil {
				return err
			}
			batch[i] = message.NewMessage(row.Event.ID, row.Payload)
		}
		if _, err := p.PublishAtomic(ctx, events.TopicOrders, batch); err != nil {
			return err
		}
	}
	return p.Close()
}

// measureHeadline is "suite bench headline".
func measureHeadline(ctx context.Context, e *env) error {
	r, err := measure(ctx, e, []benchCase{{"1,000 mails of 512 KB", func(ctx context.Context) (figures, error) {
		out, err := exec.CommandContext(ctx, e.Suite, "bench", "headline", "--json",
			"--mails", fmt.Sprint(e.amount(1000)), "--dir", e.dir).Output()
		if err != nil {
			return nil, err
		}
		var f struct {
			One   float64 `json:"one_processor_s"`
			Ten   float64 `json:"ten_processors_s"`
			Files float64 `json:"files_only_s"`
			RSS   float64 `json:"peak_rss_mb"`
		}
		if err := json.Unmarshal(out, &f); err != nil {
			return nil, err
		}
		return figures{"one_s": f.One, "ten_s": f.Ten, "files_s": f.Files, "rss_mb": f.RSS, "ten_to_files": f.Ten / f.Files}, nil
	}}})
	if err != nil {
		return err
	}
	e.atMost("T5", "ten-processors-to-files-only", r.median("1,000 mails of 512 KB", "ten_to_files"), 4)
	e.atMost("T5", "rss-of-200MB", r.median("1,000 mails of 512 KB", "rss_mb")/200, 1)
	return nil
}
