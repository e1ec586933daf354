package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/pillarbox/pillarbox/shared/database"
)

// States of a replay, as the table has them:
//
//	running ──last page──▶ published ──subscriber says so──▶ acknowledged ──stream is whole──▶ handled
//	   ▲                       │                                  │
//	   └───── the stream lost something: start over, number + 1 ──┘
const (
	replayRunning      = "running"
	replayPublished    = "published"
	replayAcknowledged = "acknowledged"
	replayHandled      = "handled"
)

// clockSlack is how far the store's clock may have been set back without events of the wanted time being passed
// over: they are chosen by when they were written down, while a subscriber goes by the time within them.
const clockSlack = time.Minute

// progress is how far a replay is.
type progress struct {
	Number   int64  `json:"number"`
	State    string `json:"state"`
	Sequence uint64 `json:"sequence,omitempty"` // of the stream: of the last message; when all is published
}

// requestReplay writes down that name wants the events since from. Events that are committed later have no number
// yet or stand in the outbox, so they come by themselves. It reports whether this is the first request.
func requestReplay(ctx context.Context, tx *database.Tx, name string, from time.Time) (first bool, err error) {
	// Its number is the time, so that a name that comes back gets another one: the stream
	// remembers publish ids for a while.
	n, err := affected(tx.ExecContext(ctx, `INSERT INTO replays (name, number, state, from_time, begin_after, up_to, done_up_to)
		SELECT CAST($1 AS TEXT), `+tx.Dialect().Now()+`, 'running', CAST($2 AS BIGINT), b.after, b.last, b.after FROM (SELECT
			coalesce((SELECT min(seq) FROM (SELECT seq FROM events WHERE created_at >= $3
				ORDER BY created_at LIMIT 1000) AS oldest) - 1, (SELECT max(seq) FROM events), 0) AS after,
			coalesce((SELECT max(seq) FROM events), 0) AS last) AS b
		WHERE NOT EXISTS (SELECT 1 FROM replays WHERE name = $1)
		ON CONFLICT (name) DO NOTHING`,
		name, database.Micros(from), database.Micros(from.Add(-clockSlack))))
	if err != nil {
		return false, fmt.Errorf("request replay: %w", err)
	}
	return n > 0, nil
}

// look answers how far the replay of a consumer is, after taking down what it has acknowledged.
func (r *Relay) look(ctx context.Context, wanted registration) (answer registered, err error) {
	if wanted.Acknowledged != 0 {
		err := r.db.Tx(ctx, func(ctx context.Context, tx *database.Tx) error {
			_, err := tx.ExecContext(ctx, `UPDATE replays SET state = 'acknowledged'
				WHERE name = $1 AND number = $2 AND state = 'published'`, wanted.Name, wanted.Acknowledged)
			return err
		})
		if err != nil {
			return answer, fmt.Errorf("acknowledge replay: %w", err)
		}
	}
	var p progress
	err = r.db.Read().QueryRowContext(ctx, `SELECT p.number, p.state, p.last_seq FROM replays p
		JOIN consumers c ON c.name = p.name WHERE p.name = $1`, wanted.Name).Scan(&p.Number, &p.State, &p.Sequence)
	if errors.Is(err, sql.ErrNoRows) {
		return answer, nil
	}
	if err != nil {
		return answer, fmt.Errorf("look at replay: %w", err)
	}
	answer.Replay = &p
	return answer, nil
}

// restartReplays begins again what is not handled: something of it may be lost. What came into being since the
// request goes along.
func restartReplays(ctx context.Context, tx *database.Tx) error {
	_, err := tx.ExecContext(ctx, `UPDATE replays SET number = number + 1, state = 'running', done_up_to = begin_after,
		last_seq = 0, up_to = coalesce((SELECT max(seq) FROM events), 0) WHERE state <> 'handled'`)
	if err != nil {
		return fmt.Errorf("restart replays: %w", err)
	}
	return nil
}
