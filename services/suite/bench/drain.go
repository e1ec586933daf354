package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/pillarbox/pillarbox/services/audit/auditsvc"
	"github.com/pillarbox/pillarbox/services/loyalty/loyaltysvc"
	"github.com/pillarbox/pillarbox/services/mailer/mailersvc"
	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/events"
	"github.com/pillarbox/pillarbox/shared/logs"
)

const drainLimit = 30 * time.Minute

// Drain is "suite bench drain".
type Drain struct {
	Service  string `arg:"" enum:"mailer,audit,loyalty" help:"mailer, audit or loyalty."`
	Messages int    `name:"messages" default:"20000" help:"Events that wait (1 to 1000000)."`
	Dir      string `name:"dir" placeholder:"FOLDER" help:"Where the scratch folder is made: on the disk to be measured (default: that for temporary files)."`
	JSON     bool   `name:"json" help:"Print one object instead of lines."`

	Out io.Writer `kong:"-"` // default standard output
}

// Validate is called by the command line.
func (d *Drain) Validate() error {
	if d.Messages < 1 || d.Messages > 1_000_000 {
		return errors.New("--messages must be 1 to 1000000")
	}
	return nil
}

// Run fills the queue while the service does not run, starts it, and reads the queue's length.
func (d *Drain) Run() error {
	ctx, stop := interruptible()
	defer stop()
	if d.Out == nil {
		d.Out = os.Stdout
	}
	s, err := newScratch(ctx, d.Dir, int64(d.Messages)*4096+(1<<28))
	if err != nil {
		return err
	}
	defer s.close()
	if err := d.fill(ctx, s.conn); err != nil {
		return err
	}
	db, err := s.database(ctx, d.Service)
	if err != nil {
		return err
	}
	defer db.Close()
	service, err := d.service(s, db)
	if err != nil {
		return err
	}
	running, end := context.WithCancel(ctx)
	ended := make(chan error, 1)
	start := time.Now()
	go func() { ended <- service.Run(running) }()
	err = d.watch(ctx, s.conn)
	took := time.Since(start)
	end()
	if err := errors.Join(err, <-ended); err != nil {
		return err
	}
	perMinute := float64(d.Messages) / took.Minutes()
	if d.JSON {
		return json.NewEncoder(d.Out).Encode(map[string]any{
			"service": d.Service, "messages": d.Messages, "seconds": took.Seconds(), "messages_per_minute": perMinute,
		})
	}
	_, err = fmt.Fprintf(d.Out, "%s: %d messages in %.1f s, %.0f messages per minute\n", d.Service, d.Messages, took.Seconds(), perMinute)
	return err
}

type runner interface {
	Run(ctx context.Context) error
}

func (d *Drain) service(s *scratch, db *database.DB) (runner, error) {
	switch d.Service {
	case mailersvc.Name:
		return mailersvc.New(mailersvc.Config{Pickup: filepath.Join(s.dir, "pickup")}, mailersvc.Deps{DB: db, Broker: s.conn, Log: logs.Discard()})
	case auditsvc.Name:
		return auditsvc.New(auditsvc.Config{}, auditsvc.Deps{DB: db, Broker: s.conn, Log: logs.Discard()})
	default:
		return loyaltysvc.New(loyaltysvc.Config{}, loyaltysvc.Deps{DB: db, Broker: s.conn, Log: logs.Discard()})
	}
}

// watch returns when the queue is empty; once a second it says how long it is.
func (d *Drain) watch(ctx context.Context, conn *broker.Conn) error {
	said, last := time.Now(), uint64(d.Messages)
	return Until(ctx, 20*time.Millisecond, drainLimit, func() (bool, error) {
		b, err := conn.Backlog(ctx, events.TopicOrders, d.Service)
		if err != nil {
			return false, err
		}
		if since := time.Since(said); since >= time.Second && !d.JSON && b.AckFloor > 0 {
			fmt.Fprintf(d.Out, "%7d wait, %.0f messages per minute\n", b.Waiting, float64(last-min(last, b.Waiting))/since.Minutes())
			said, last = time.Now(), b.Waiting
		}
		return b.AckFloor >= uint64(d.Messages), nil
	})
}

// fill puts orders of many customers into the queue.
func (d *Drain) fill(ctx context.Context, conn *broker.Conn) error {
	p := broker.NewPublisher(conn, broker.PublisherConfig{Timeout: 10 * time.Second})
	for n := 0; n < d.Messages; n += 1000 {
		messages := make([]*message.Message, min(1000, d.Messages-n))
		for i := range messages {
			_, raw, err := Placed(n + i)
			if err != nil {
				return err
			}
			messages[i] = message.NewMessage(uuid.NewString(), raw)
		}
		if _, err := p.PublishAtomic(ctx, events.TopicOrders, messages); err != nil {
			return err
		}
	}
	return p.Close()
}
