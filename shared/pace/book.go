package pace

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/wait"
)

const (
	bookTimeout   = 3 * time.Second
	conflictTries = 4
	// pieces that the events beyond those asked for are leased in: each has its own moment.
	pieces = 8
)

// errNoRoom: the queue of all replicas is too long for the caller.
var errNoRoom = errors.New("booked up")

// booking is the answer to a request, by the database's clock.
type booking struct {
	booked int64 // the end of the queue, with this booking
	at     int64 // when it was made
}

// book leases m events, of which n can be spent at once at most ahead from now.
//
// The clock is read once and carried in a column, since both engines allow
// a second reading to differ. A reading that waited for the row is a little old; the
// law does not need it to be the latest, only to be no later than the answer.
//
// An end of the queue farther away than anybody books is not a queue: the clock was set
// back, or the rate was raised. The budget then counts as spent, not as closed.
func (p *Pacer) book(ctx context.Context, m, n int, ahead time.Duration) (b booking, err error) {
	ctx, cancel := context.WithTimeout(ctx, bookTimeout)
	defer cancel()
	const start = `CASE
		WHEN pace.booked > excluded.asked_at + $5 THEN excluded.asked_at + $4
		WHEN pace.booked > excluded.asked_at THEN pace.booked
		ELSE excluded.asked_at END`
	statement := `
		INSERT INTO pace (name, booked, asked_at)
		SELECT $1, clock.now + $2, clock.now FROM (SELECT ` + p.databaseNow() + ` AS now) AS clock WHERE true
		ON CONFLICT (name) DO UPDATE SET booked = ` + start + ` + $2, asked_at = excluded.asked_at
		WHERE ` + start + ` + $3 - $4 <= excluded.asked_at + $6
		RETURNING booked, asked_at`
	args := []any{
		p.config.Name, p.law.cost(m), p.law.cost(n), p.law.tolerance,
		p.law.tolerance + 2*maxAhead.Microseconds(), ahead.Microseconds(),
	}
	for try := 1; ; try++ {
		err = p.db.Tx(ctx, func(ctx context.Context, tx *database.Tx) error {
			return tx.QueryRowContext(ctx, statement, args...).Scan(&b.booked, &b.at)
		})
		switch {
		case err == nil:
			return b, nil
		case errors.Is(err, sql.ErrNoRows):
			return b, errNoRoom
		case database.Classify(err) != database.ClassConflict || try == conflictTries:
			return b, fmt.Errorf("lease share of %s: %w", p.config.Name, err)
		}
		wait.For(ctx, time.Duration(try)*rand.N(20*time.Millisecond))
	}
}

// split divides a booking of m events, n of them together, into shares.
//
// sent and received are when the request left and the answer came by the clock of
// this process, which need not agree with the database's. The earliest moment counts
// from received and the latest from sent, so both err to the safe side.
func (l law) split(b booking, m, n int, sent, received time.Time) []share {
	var all []share
	start := b.booked - l.cost(m)
	step := max(1, (m-n+pieces-1)/pieces)
	for done := 0; done < m; {
		k := min(step, m-done)
		if done == 0 {
			k = n
		}
		done += k
		wait := time.Duration(max(0, start+l.cost(done)-l.tolerance-b.at)) * time.Microsecond
		all = append(all, share{
			n: k, from: received.Add(wait), void: sent.Add(wait + time.Duration(l.validity)*time.Microsecond),
		})
	}
	return all
}
