package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/lease"
)

// firstGeneration names the durables of a stream that never lost its tail.
const firstGeneration = 1

// sequenceGap is how far above everything the old stream can have held a new one
// begins: other publishers (routes, replays) take sequences that state does not know.
const sequenceGap = 1_000_000

// state is the one row of relay_state.
type state struct {
	created     int64 // of the stream, in microseconds
	lastSeq     uint64
	generation  int64
	refillCount int64
	refillFrom  sql.NullInt64 // stream sequence; set while a refill runs
	cursor      sql.NullInt64 // events.seq; set while the whole horizon is refilled
}

func (s state) refilling() bool { return s.refillFrom.Valid }

// load reads the state and puts this leader's term on it, or takes the stream as
// it is when the database knows none.
func (l *leader) load(ctx context.Context) error {
	var s state
	err := l.r.db.Tx(ctx, func(ctx context.Context, tx *database.Tx) (err error) {
		if err := lease.Check(ctx, tx, leaseName, l.term); err != nil {
			return err
		}
		if s, err = readState(ctx, tx); err != nil {
			return err
		}
		return l.write(ctx, tx, s)
	})
	if errors.Is(err, sql.ErrNoRows) {
		s, err = l.adopt(ctx)
	}
	if err != nil {
		return fmt.Errorf("load relay state: %w", err)
	}
	// Also brings the stream's settings and its generation up to date.
	if err := l.ensureStream(ctx, s); err != nil {
		return err
	}
	if l.witness, err = l.logged(ctx, s.lastSeq); err != nil {
		return err
	}
	listed, err := l.seqs(ctx, `SELECT seq FROM relay_lost ORDER BY seq LIMIT 1`)
	if err != nil {
		return fmt.Errorf("load relay state: %w", err)
	}
	l.unlisted = len(listed) > 0 && !s.refilling()
	if err := l.lookForRoutes(ctx, 0); err != nil {
		return err
	}
	l.state, l.loaded = s, true
	l.r.metrics.refilling.Set(0)
	if s.refilling() {
		l.r.metrics.refilling.Set(1)
	}
	return nil
}

func readState(ctx context.Context, tx *database.Tx) (s state, err error) {
	err = tx.QueryRowContext(ctx, `SELECT stream_created, last_seq, generation, refill_count, refill_from, refill_cursor
		FROM relay_state WHERE id = 1`).
		Scan(&s.created, &s.lastSeq, &s.generation, &s.refillCount, &s.refillFrom, &s.cursor)
	return s, err
}

// adopt writes the first state: that of a new stream, or of one that was there before the database.
func (l *leader) adopt(ctx context.Context) (state, error) {
	stream, err := l.r.conn.EnsureStream(ctx, l.r.streamConfig(state{generation: firstGeneration}))
	if err != nil {
		return state{}, err
	}
	l.r.step("relay.stream")
	s := state{
		created: database.Micros(stream.Created), lastSeq: stream.LastSeq,
		generation: max(stream.Generation, firstGeneration),
	}
	err = l.r.db.Tx(ctx, func(ctx context.Context, tx *database.Tx) error {
		if err := lease.Check(ctx, tx, leaseName, l.term); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO relay_state (id, stream_created, last_seq, generation, term)
			VALUES (1, $1, $2, $3, $4)`, s.created, s.lastSeq, s.generation, l.term)
		return err
	})
	return s, err
}

// write replaces the state, unless a later term has written it.
func (l *leader) write(ctx context.Context, tx *database.Tx, s state) error {
	result, err := tx.ExecContext(ctx, `UPDATE relay_state SET stream_created = $1, last_seq = $2, generation = $3,
			refill_count = $4, refill_from = $5, refill_cursor = $6, term = $7
		WHERE id = 1 AND term <= $7`,
		s.created, s.lastSeq, s.generation, s.refillCount, s.refillFrom, s.cursor, l.term)
	if err != nil {
		return fmt.Errorf("write relay state: %w", err)
	}
	n, err := result.RowsAffected()
	if err != nil {
		return fmt.Errorf("write relay state: %w", err)
	}
	if n != 1 {
		return fmt.Errorf("write relay state: %w", lease.ErrLost)
	}
	return nil
}

func (r *Relay) streamConfig(s state) broker.StreamConfig {
	c := broker.StreamConfig{
		Name: r.c.Stream, MaxBytes: r.c.MaxBytes, Replicas: r.c.Replicas, FirstSeq: 1, Generation: s.generation,
	}
	if s.created != 0 {
		c.FirstSeq = s.lastSeq + sequenceGap
	}
	return c
}

// ensureStream creates the stream when it is gone, and raises its generation when
// it is behind. Whether it is the stream that s speaks of is compare's business.
func (l *leader) ensureStream(ctx context.Context, s state) error {
	_, err := l.r.conn.EnsureStream(ctx, l.r.streamConfig(s))
	return err
}

// compare looks whether the stream still has what it confirmed, and begins a refill when not.
func (l *leader) compare(ctx context.Context) error {
	at, reconnects := time.Now(), l.r.conn.NATS.Stats().Reconnects
	stream, err := l.r.conn.Stream(ctx, l.r.c.Stream)
	if errors.Is(err, broker.ErrNoStream) {
		if stream, err = l.r.conn.EnsureStream(ctx, l.r.streamConfig(l.state)); err == nil {
			l.r.step("relay.stream")
		}
	}
	if err != nil {
		return err
	}
	if database.Micros(stream.Created) != l.state.created {
		err = l.refillAll(ctx, stream)
	} else {
		err = l.compareSame(ctx, stream)
	}
	if err == nil {
		l.compared, l.reconnects = at, reconnects
		l.r.metrics.sequence.Set(float64(stream.LastSeq))
		l.highest, l.held = max(l.highest, stream.LastSeq), int64(stream.Bytes)
	}
	return err
}

// compareSame is compare for the stream that the state speaks of.
func (l *leader) compareSame(ctx context.Context, stream broker.StreamState) error {
	whole, err := l.whole(ctx, stream)
	switch {
	case err != nil:
		return err
	case !whole:
		return l.refillTail(ctx, stream)
	case stream.Generation > l.state.generation:
		// The database is the older one of the two (restored): durables keep the stream's name.
		l.log.WarnContext(ctx, "the stream is of a later generation than the database knows",
			keyGeneration, stream.Generation)
		s := l.state
		s.generation = stream.Generation
		return l.replace(ctx, s)
	case stream.Generation < l.state.generation:
		return l.ensureStream(ctx, l.state)
	}
	return nil
}

// whole reports whether the stream has not lost its tail.
func (l *leader) whole(ctx context.Context, stream broker.StreamState) (bool, error) {
	// Consumers publish too, along routes: what they lost shows only in the end of the stream.
	if stream.LastSeq < max(l.state.lastSeq, l.highest) || l.unlisted {
		return false, nil
	}
	return l.agrees(ctx, stream, l.witness)
}

// replace writes a new state in a transaction of its own, together with what belongs to it.
func (l *leader) replace(ctx context.Context, s state, besides ...func(context.Context, *database.Tx) error) error {
	err := l.r.db.Tx(ctx, func(ctx context.Context, tx *database.Tx) error {
		if err := lease.Check(ctx, tx, leaseName, l.term); err != nil {
			return err
		}
		for _, do := range besides {
			if err := do(ctx, tx); err != nil {
				return err
			}
		}
		return l.write(ctx, tx, s)
	})
	if err != nil {
		l.loaded = false // the commit may have happened
		return err
	}
	l.state = s
	return nil
}
