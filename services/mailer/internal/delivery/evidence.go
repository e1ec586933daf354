package delivery

import (
	"context"
	"fmt"
	"time"

	"github.com/pillarbox/pillarbox/services/mailer/internal/ledger"
	"github.com/pillarbox/pillarbox/services/mailer/internal/letter"
	"github.com/pillarbox/pillarbox/services/mailer/internal/pickup"
	"github.com/pillarbox/pillarbox/shared/consumer"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/reconcile"
)

// Evidence is what rows and files prove of events. A row in state staged whose file is staged is a mail in flight, and
// one whose file is in the pickup folder is done. One whose file is in neither was published and taken away by the mail server,
// and only the note of it is missing, which a working mailer makes up for within Grace; or it was removed by hand.
// Beyond Grace it counts as unproven; what a sweep took for published for that reason counts as assumed.
type Evidence struct {
	// Box is the pickup folder; an error: nobody can look there now, and staged mails count as in flight.
	Box   func(ctx context.Context) (*pickup.Box, error)
	Grace time.Duration
	Now   string // the database's clock, in SQL
}

// Proofs judges the rows of events.
func (e Evidence) Proofs(ctx context.Context, q database.Querier, ids []string) (map[string]consumer.Proof, error) {
	rows, err := ledger.Standings(ctx, q, e.Now, ids)
	if err != nil {
		return nil, err
	}
	found := make(map[string]consumer.Proof, len(rows))
	var staged []ledger.Standing
	for _, row := range rows {
		_, many := found[row.EventID]
		found[row.EventID] = consumer.Proof{In: standings[row.State], Many: many, Note: notes[row.State]}
		if row.Assumed {
			found[row.EventID] = consumer.Proof{In: reconcile.Assumed, Many: many, Note: unseen(row)}
		}
		if row.State == "staged" && !many {
			staged = append(staged, row)
		}
	}
	if len(staged) == 0 {
		return found, nil
	}
	return found, e.look(ctx, staged, found)
}

// standings are what the states of rows mean.
var standings = map[string]reconcile.Standing{
	"staged": reconcile.InFlight, ledger.Queued: reconcile.InFlight, ledger.Sending: reconcile.InFlight,
	ledger.Accepted: reconcile.Done, ledger.Unknown: reconcile.Done, ledger.Refused: reconcile.Dead,
}

var notes = map[string]string{ledger.Unknown: "whether the mail server has it is unknown", ledger.Refused: "refused by the mail server"}

func (e Evidence) look(ctx context.Context, staged []ledger.Standing, found map[string]consumer.Proof) error {
	box, err := e.Box(ctx)
	if err != nil {
		return nil // it is reported by readiness, and stops the consumer
	}
	items := make([]pickup.Item, len(staged))
	for n, row := range staged {
		items[n] = pickup.Item{Delivery: row.ID, Staged: row.StagedName, MessageID: row.MessageID}
	}
	seen, err := box.See(items)
	if err != nil {
		return nil
	}
	for n, row := range staged {
		switch {
		case seen[n] == pickup.Published:
			found[row.EventID] = consumer.Proof{In: reconcile.Done}
		case seen[n] == pickup.Missing && row.Age > e.Grace:
			found[row.EventID] = consumer.Proof{In: reconcile.Unproven, Note: unseen(row)}
		}
	}
	return nil
}

func unseen(row ledger.Standing) string {
	return fmt.Sprintf("%s was in neither folder: look for Message-ID <%s> in the mail server's log", row.StagedName, row.MessageID)
}

// Held pages through the mails of orders.
func (e Evidence) Held(ctx context.Context, q database.Querier, w reconcile.Window, cursor string) ([]reconcile.HeldEvent, string, error) {
	return ledger.Held(ctx, q, w, letter.RequestTemplate, cursor)
}
