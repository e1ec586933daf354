package mailersvc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/pillarbox/pillarbox/services/mailer/internal/ledger"
	"github.com/pillarbox/pillarbox/shared/database"
)

// Ledger are the flags with which a person's command finds the mailer's deliveries.
type Ledger struct {
	DatabaseURL string `name:"database-url" env:"PILLARBOX_MAILER_DATABASE_URL,PILLARBOX_DATABASE_URL" placeholder:"URL" help:"The mailer's database: postgres://…, or sqlite:./data/mailer.db for a suite. …_FILE names a file with it."`
}

// within opens the database for do.
func (l Ledger) within(do func(ctx context.Context, db *database.DB) error) (err error) {
	if l.DatabaseURL == "" {
		return errors.New("PILLARBOX_MAILER_DATABASE_URL or PILLARBOX_DATABASE_URL must be set")
	}
	if path, file := strings.CutPrefix(l.DatabaseURL, "sqlite:"); file {
		if _, err := os.Stat(path); err != nil {
			return fmt.Errorf("the suite's database: %w", err) // opening would make a new one
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	db, err := database.Open(l.DatabaseURL, database.Options{Schema: Name, MaxConns: 2})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	return do(ctx, db)
}

// DeliveriesCommand is "deliveries".
type DeliveriesCommand struct {
	Ledger `embed:""`
	State  string    `name:"state" default:"unknown" enum:"unknown,refused,queued,sending,accepted" help:"Which deliveries: unknown (nobody knows whether the mail server took them), refused, queued, sending or accepted."`
	JSON   bool      `name:"json" help:"One JSON object per line."`
	Out    io.Writer `kong:"-"`
}

// Run lists.
func (c *DeliveriesCommand) Run() error {
	if c.Out == nil {
		c.Out = os.Stdout
	}
	return c.within(func(ctx context.Context, db *database.DB) error {
		const page = 500
		table := tabwriter.NewWriter(c.Out, 0, 0, 2, ' ', 0)
		if !c.JSON {
			fmt.Fprintln(table, "ID\tEVENT\tORDER\tVERSION\tATTEMPTS\tSETTLED\tRECIPIENTS")
		}
		for after := ""; ; {
			found, err := ledger.List(ctx, db, c.State, after, page)
			if err != nil {
				return err
			}
			for _, e := range found {
				if err := c.write(table, e); err != nil {
					return err
				}
				after = e.ID
			}
			if len(found) < page {
				return table.Flush()
			}
		}
	})
}

func (c *DeliveriesCommand) write(table io.Writer, e ledger.Entry) error {
	settled := ""
	if !e.SettledAt.IsZero() {
		settled = e.SettledAt.Format(time.RFC3339)
	}
	if c.JSON {
		return json.NewEncoder(c.Out).Encode(map[string]any{
			"id": e.ID, "event_id": e.EventID, "order_id": e.OrderID, "version": e.Version, "state": e.State, "message_id": e.MessageID,
			"attempts": e.Attempts, "created_at": e.CreatedAt.Format(time.RFC3339Nano), "settled_at": settled, "recipients": e.Recipients,
		})
	}
	var all []string
	for _, r := range e.Recipients {
		all = append(all, fmt.Sprintf("%s %s (%s)", r.Address, r.State, r.Reply))
	}
	_, err := fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%d\t%s\t%s\n", e.ID, e.EventID, e.OrderID, e.Version, e.Attempts, settled, strings.Join(all, "; "))
	return err
}

// ResendCommand is "resend".
type ResendCommand struct {
	Ledger `embed:""`
	ID     string    `arg:"" help:"Delivery, as the command deliveries shows it."`
	Reason string    `name:"reason" required:"" help:"Why; it is recorded with your name."`
	Out    io.Writer `kong:"-"`
}

// Run queues a delivery again.
func (c *ResendCommand) Run() error {
	if c.Out == nil {
		c.Out = os.Stdout
	}
	return c.within(func(ctx context.Context, db *database.DB) error {
		if err := ledger.Resend(ctx, db, c.ID, ledger.Person{Who: who(), Reason: c.Reason}); err != nil {
			return err
		}
		_, err := fmt.Fprintf(c.Out, "%s is queued again for the recipients that are not known to have it\n", c.ID)
		return err
	})
}

// who is the person at the command line.
func who() string {
	name, host := "unknown", "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if h, err := os.Hostname(); err == nil {
		host = h
	}
	return name + "@" + host
}
