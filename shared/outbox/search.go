package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/events"
	"github.com/pillarbox/pillarbox/shared/reconcile"
)

const (
	// mostDeleted is up to how many removed places of the stream are asked for at once; with more, each event is.
	mostDeleted = 10_000
	// mostUnderWay is how many messages on routes and of replays are read in one question.
	mostUnderWay = 5_000
	logPage      = 500
)

// search looks for some events, from where they come to where they go. Each step takes what it finds out of rest.
type search struct {
	a          *Account
	subscriber string
	rest       []reconcile.Event
	places     map[string]reconcile.Place

	state     state
	stream    jetstream.Stream // nil: there is none
	info      *jetstream.StreamInfo
	deleted   map[uint64]bool // within the stream; nil: not known, each event is asked for
	sequences map[string][]uint64
	floors    map[string]uint64 // by subscriber
}

// keep leaves in rest those of which do does not know the place.
func (s *search) keep(do func(e reconcile.Event) (reconcile.Place, bool)) {
	s.rest = slices.DeleteFunc(s.rest, func(e reconcile.Event) bool {
		place, ok := do(e)
		if ok {
			s.places[e.ID] = place
		}
		return ok
	})
}

func (s *search) readState(ctx context.Context) error {
	err := s.a.db.Read().QueryRowContext(ctx, `SELECT stream_created, last_seq, generation, refill_from, refill_cursor FROM relay_state WHERE id = 1`).
		Scan(&s.state.created, &s.state.lastSeq, &s.state.generation, &s.state.refillFrom, &s.state.cursor)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return fmt.Errorf("read relay state: %w", err)
	}
	return nil
}

func (s *search) readStream(ctx context.Context) (err error) {
	if len(s.rest) == 0 || s.subscriber == "" {
		return nil
	}
	if !s.a.conn.NATS.IsConnected() {
		return broker.ErrDisconnected
	}
	s.stream, err = s.a.conn.JS.Stream(ctx, s.a.c.Stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		s.stream = nil
		return nil
	}
	if err != nil {
		return fmt.Errorf("look up stream: %w", err)
	}
	s.info, s.deleted = s.stream.CachedInfo(), map[uint64]bool{}
	if n := s.info.State.NumDeleted; n > mostDeleted {
		s.deleted = nil
	} else if n > 0 {
		info, err := s.stream.Info(ctx, jetstream.WithDeletedDetails(true))
		if err != nil {
			return fmt.Errorf("look up removed messages: %w", err)
		}
		for _, sequence := range info.State.Deleted {
			s.deleted[sequence] = true
		}
	}
	return nil
}

// behind reports whether the stream has less than the relay was promised: the relay will notice, and publish it again.
func (s *search) behind() bool {
	return s.state.created != 0 && (s.info == nil || database.Micros(s.info.Created) != s.state.created ||
		s.info.State.LastSeq < s.state.lastSeq)
}

// inOutbox finds what is still to be published.
func (s *search) inOutbox(ctx context.Context) (err error) {
	condition, arg := s.a.db.Dialect().AnyOf(1, s.ids())
	rows, err := s.a.db.Read().QueryContext(ctx, `SELECT o.event_id, CASE WHEN o.dead_reason IS NOT NULL THEN 1 ELSE 0 END,
			(SELECT count(*) FROM outbox d WHERE d.dead_reason IS NOT NULL AND d.order_id = o.order_id AND d.seq < o.seq)
		FROM outbox o WHERE o.event_id `+condition, arg)
	if err != nil {
		return fmt.Errorf("read outbox: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	places := map[string]reconcile.Place{}
	for rows.Next() {
		var id string
		var dead, before int
		if err := rows.Scan(&id, &dead, &before); err != nil {
			return fmt.Errorf("read outbox: %w", err)
		}
		switch {
		case dead > 0:
			places[id] = reconcile.Refused
		case before > 0:
			places[id] = reconcile.Held
		default:
			places[id] = reconcile.InOutbox
		}
	}
	s.keep(func(e reconcile.Event) (reconcile.Place, bool) { p, ok := places[e.ID]; return p, ok })
	return rows.Err()
}

func (s *search) ids() []string {
	ids := make([]string, len(s.rest))
	for n, e := range s.rest {
		ids[n] = e.ID
	}
	if len(ids) == 0 {
		ids = []string{""} // an empty list is no SQL
	}
	return ids
}

// inRefill finds what the stream lost and the relay publishes again, or will as soon as it looks.
func (s *search) inRefill(ctx context.Context) (err error) {
	seqs := []int64{0}
	for _, e := range s.rest {
		seqs = append(seqs, e.Seq)
	}
	condition, arg := s.a.db.Dialect().AnyOf(1, seqs)
	rows, err := s.a.db.Read().QueryContext(ctx, `SELECT seq FROM relay_lost WHERE seq `+condition, arg)
	if err != nil {
		return fmt.Errorf("read lost events: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	lost := map[int64]bool{}
	for rows.Next() {
		var seq int64
		if err := rows.Scan(&seq); err != nil {
			return fmt.Errorf("read lost events: %w", err)
		}
		lost[seq] = true
	}
	s.keep(func(e reconcile.Event) (reconcile.Place, bool) {
		return reconcile.InRefill, lost[e.Seq] || s.state.cursor.Valid && e.Seq > s.state.cursor.Int64
	})
	return rows.Err()
}

// inStream finds what is in the stream and not acknowledged by the subscriber, or by the first one of the route.
func (s *search) inStream(ctx context.Context) error {
	if s.subscriber == "" {
		s.keep(func(reconcile.Event) (reconcile.Place, bool) { return reconcile.Gone, true })
	}
	if len(s.rest) == 0 {
		return nil
	}
	if s.behind() {
		s.keep(func(e reconcile.Event) (reconcile.Place, bool) { return reconcile.InRefill, true })
		return nil
	}
	reader, place := s.subscriber, reconcile.InStream
	if route := s.a.c.Route; s.a.c.Sequential {
		if !slices.Contains(route, s.subscriber) {
			s.keep(func(reconcile.Event) (reconcile.Place, bool) { return reconcile.Elsewhere, true })
			return nil
		}
		if route[0] != s.subscriber {
			reader, place = route[0], reconcile.OnRoute
		}
	}
	if err := s.unacknowledged(ctx, reader, place); err != nil || len(s.rest) == 0 {
		return err
	}
	// What is not at its first place may have been published again.
	oldest := s.rest[0].At
	for _, e := range s.rest {
		s.sequences[e.ID] = nil
		if e.At.Before(oldest) {
			oldest = e.At
		}
	}
	if err := s.readLog(ctx, oldest.Add(-clockSlack), false); err != nil {
		return fmt.Errorf("read relay log: %w", err)
	}
	return s.unacknowledged(ctx, reader, place)
}

// unacknowledged finds what the reader will get, or has got and not acknowledged.
func (s *search) unacknowledged(ctx context.Context, reader string, place reconcile.Place) error {
	floor, err := s.floorOf(ctx, reader)
	if err != nil {
		return err
	}
	var failed error
	s.keep(func(e reconcile.Event) (reconcile.Place, bool) {
		for _, sequence := range s.sequences[e.ID] {
			there, err := s.has(ctx, e.ID, sequence)
			failed = errors.Join(failed, err)
			if there && sequence > floor {
				return place, true
			}
		}
		return "", false
	})
	return failed
}

// has reports whether the stream has the event's message at a sequence.
func (s *search) has(ctx context.Context, id string, sequence uint64) (bool, error) {
	if s.info == nil || sequence < s.info.State.FirstSeq || sequence > s.info.State.LastSeq {
		return false, nil
	}
	if s.deleted != nil {
		return !s.deleted[sequence], nil
	}
	m, err := s.stream.GetMsg(ctx, sequence)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look up message %d: %w", sequence, err)
	}
	return strings.HasSuffix(m.Header.Get(jetstream.MsgIDHeader), id), nil
}

// underWay finds what is on a route to the subscriber, or a part of its replay: the log does not have those messages, so they
// are read, all that somebody has still to acknowledge.
func (s *search) underWay(ctx context.Context) error {
	if len(s.rest) == 0 || s.stream == nil {
		s.keep(func(reconcile.Event) (reconcile.Place, bool) { return reconcile.Gone, true })
		return nil
	}
	if err := s.inReplay(ctx); err != nil {
		return err
	}
	coming := map[string]reconcile.Place{}
	cut, left := false, mostUnderWay
	for _, topic := range []string{events.RouteTopic("*"), events.ReplayTopic(s.subscriber)} {
		for next := s.info.State.FirstSeq; len(s.rest) > 0; left-- {
			m, err := s.stream.GetMsg(ctx, next, jetstream.WithGetMsgSubject(topic))
			if errors.Is(err, jetstream.ErrMsgNotFound) {
				break
			}
			if err != nil {
				return fmt.Errorf("look up messages of %s: %w", topic, err)
			}
			if cut = left <= 0; cut {
				break
			}
			if next, err = s.after(ctx, m, coming); err != nil {
				return err
			}
		}
	}
	s.keep(func(e reconcile.Event) (reconcile.Place, bool) {
		if place, ok := coming[e.ID]; ok {
			return place, true
		}
		if cut {
			return reconcile.Untold, true
		}
		return reconcile.Gone, true
	})
	return nil
}

// after notes a message that the subscriber, or one before it on the route, has not acknowledged, and returns where
// the next one may be.
func (s *search) after(ctx context.Context, m *jetstream.RawStreamMsg, coming map[string]reconcile.Place) (uint64, error) {
	reader, routed := strings.CutPrefix(m.Subject, events.RouteTopic(""))
	if !routed {
		reader = s.subscriber
	}
	floor, err := s.floorOf(ctx, reader)
	if err != nil {
		return 0, err
	}
	if m.Sequence <= floor {
		if !routed {
			return floor + 1, nil
		}
		return m.Sequence + 1, nil
	}
	text := m.Header.Get(events.HeaderRoute)
	route, err := events.ParseRoute(text)
	id := eventOf(m.Header.Get(jetstream.MsgIDHeader), text)
	switch {
	case reader == s.subscriber:
		coming[id] = reconcile.InStream
	case err == nil && slices.Contains(route, s.subscriber):
		coming[id] = reconcile.OnRoute
	}
	return m.Sequence + 1, nil
}

// eventOf is the id of the event that was published under a publish id, on a route or not.
func eventOf(publishID, route string) string {
	for _, prefix := range []string{refillPrefix, replayPrefix} {
		if strings.HasPrefix(publishID, prefix) {
			_, publishID, _ = strings.Cut(publishID, ":")
		}
	}
	return strings.TrimSuffix(publishID, "/"+route)
}

// inReplay finds what a replay for the subscriber has still to publish.
func (s *search) inReplay(ctx context.Context) error {
	var doneUpTo, upTo int64
	err := s.a.db.Read().QueryRowContext(ctx, `SELECT done_up_to, up_to FROM replays WHERE name = $1 AND state = 'running'`, s.subscriber).
		Scan(&doneUpTo, &upTo)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read replay: %w", err)
	}
	s.keep(func(e reconcile.Event) (reconcile.Place, bool) {
		return reconcile.InStream, e.Seq > doneUpTo && e.Seq <= upTo
	})
	return nil
}
