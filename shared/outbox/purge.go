package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/lease"
	"github.com/pillarbox/pillarbox/shared/logs"
)

const (
	trimRows = 500 // of the log in one transaction
	trimMost = 40  // transactions in one purge: the rest waits for the next
)

// seen is a registered consumer's durable as the purge last saw it.
type seen struct {
	durable    string
	registered int64
	created    int64
	floor      uint64
}

// purge removes from the stream what every registered consumer has acknowledged
// and the horizon no longer holds. It can wait: an error is only logged, except
// that another replica leads.
func (l *leader) purge(ctx context.Context) error {
	blocked, err := l.tryPurge(ctx)
	if err == nil {
		err = l.compact(ctx)
	}
	if errors.Is(err, lease.ErrLost) {
		return err
	}
	if err != nil {
		if ctx.Err() == nil {
			l.r.metrics.errors.Inc()
			l.log.WarnContext(ctx, "not purged, trying again", logs.Error, err)
		}
		return nil
	}
	l.r.metrics.purgeBlocked.Set(0)
	if blocked != "" {
		l.r.metrics.purgeBlocked.Set(1)
	}
	switch {
	case blocked == l.blocked:
	case blocked == "":
		l.log.InfoContext(ctx, "the stream is purged again")
	default:
		l.log.WarnContext(ctx, "a registered consumer stops the purge of the stream", logs.Reason, blocked)
	}
	l.blocked = blocked
	return nil
}

func (l *leader) tryPurge(ctx context.Context) (blocked string, err error) {
	old, err := l.trimLog(ctx)
	if err != nil {
		return "", err
	}
	consumers, err := l.registered(ctx)
	if err != nil || len(consumers) == 0 {
		return "", err // somebody may register who needs it all
	}
	stream, err := l.r.conn.Stream(ctx, l.r.c.Stream)
	if err != nil {
		return "", err
	}
	handle, err := l.r.conn.JS.Stream(ctx, l.r.c.Stream)
	if err != nil {
		return "", fmt.Errorf("look up stream: %w", err)
	}
	acked := stream.LastSeq
	for name, now := range consumers {
		floor, why, err := l.floor(ctx, handle, name, now, stream.LastSeq)
		if err != nil {
			return "", err
		}
		if why != "" {
			blocked = why
			continue
		}
		acked = min(acked, floor)
	}
	if why := l.checkConsumers(ctx, consumers); why != "" {
		blocked = why
	}
	if blocked == "" && l.onRoutes {
		if err := l.lookForRoutes(ctx, acked); err != nil {
			return "", err
		}
	}
	upTo := min(acked, max(old, pressed(stream, l.share(), l.replays.waiting)))
	if blocked != "" || upTo < stream.FirstSeq || stream.Messages == 0 {
		return blocked, nil
	}
	if err := handle.Purge(ctx, jetstream.WithPurgeSequence(upTo+1)); err != nil {
		return "", fmt.Errorf("purge stream: %w", err)
	}
	l.log.DebugContext(ctx, "stream purged", logs.Sequence, upTo)
	return "", nil
}

// pressed returns up to which sequence the stream has to go to be half empty when it
// is more than three quarters full; or to be three quarters empty when it is more than half full and a replay
// waits for room. Then keeping the horizon gives way: what
// all consumers have acknowledged is no reason to take no new event, and
// the database keeps it in any case.
func pressed(s broker.StreamState, limit int64, replay bool) uint64 {
	quarter := uint64(limit) / 4
	most, keep := 3*quarter, 2*quarter
	if replay {
		most, keep = 2*quarter, quarter
	}
	if s.Bytes <= most || s.LastSeq < s.FirstSeq {
		return 0
	}
	share := float64(s.Bytes-keep) / float64(s.Bytes)
	return s.FirstSeq + uint64(share*float64(s.LastSeq-s.FirstSeq))
}

// floor returns up to which sequence, at most last, the consumer has everything, or why nothing may be purged.
func (l *leader) floor(ctx context.Context, stream jetstream.Stream, name string, now seen, last uint64) (uint64, string, error) {
	if !strings.HasSuffix(now.durable, fmt.Sprintf("-%d", l.state.generation)) {
		return 0, name + " has not registered since the stream lost messages", nil
	}
	consumer, err := l.r.conn.JS.Consumer(ctx, l.r.c.Stream, now.durable)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		return 0, name + " is registered but its durable is missing", nil
	}
	if err != nil {
		return 0, "", fmt.Errorf("look up durable of %s: %w", name, err)
	}
	info := consumer.CachedInfo()
	now.created, now.floor = database.Micros(info.Created), info.AckFloor.Stream
	was, known := l.consumers[name]
	if known && was.durable == now.durable && was.registered == now.registered &&
		(was.created != now.created || now.floor < was.floor) {
		// Until it registers again, which it does when it notices.
		return 0, name + " has a durable that was reset", nil
	}
	l.consumers[name] = now
	passed, err := passedOver(ctx, stream, info, last)
	return passed, "", err
}

// passedOver returns up to which sequence, at most last, nothing is left for the durable. Its floor stands still while
// the stream is filled with what is for others, so the stream is asked for the first message above it that the durable takes.
// (The durable's own word does not do: one that has just been made says for a moment that nothing is pending.) last must
// have been read before info.
func passedOver(ctx context.Context, stream jetstream.Stream, info *jetstream.ConsumerInfo, last uint64) (uint64, error) {
	floor, topics := info.AckFloor.Stream, info.Config.FilterSubjects
	if info.Config.FilterSubject != "" {
		topics = []string{info.Config.FilterSubject}
	}
	if floor >= last || len(topics) == 0 {
		return floor, nil
	}
	passed := last
	for _, topic := range topics {
		m, err := stream.GetMsg(ctx, floor+1, jetstream.WithGetMsgSubject(topic))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("look up next message of %s: %w", topic, err)
		}
		passed = min(passed, m.Sequence-1)
	}
	return max(floor, passed), nil
}

// registered reads the consumers that the purge waits for.
func (l *leader) registered(ctx context.Context) (found map[string]seen, err error) {
	rows, err := l.r.db.Read().QueryContext(ctx, `SELECT name, durable, registered_at FROM consumers`)
	if err != nil {
		return nil, fmt.Errorf("read registered consumers: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	found = map[string]seen{}
	for rows.Next() {
		var name string
		var s seen
		if err := rows.Scan(&name, &s.durable, &s.registered); err != nil {
			return nil, fmt.Errorf("read registered consumers: %w", err)
		}
		found[name] = s
	}
	return found, rows.Err()
}

// trimLog removes log rows older than the horizon and returns the sequence up to
// which everything is older.
func (l *leader) trimLog(ctx context.Context) (uint64, error) {
	bites := 0
	err := l.inBites(ctx, func(ctx context.Context, tx *database.Tx) (int64, error) {
		if bites++; bites > trimMost {
			return 0, nil
		}
		// The log grows in the order of time, so its old rows are its first ones.
		return affected(tx.ExecContext(ctx, `DELETE FROM relay_log WHERE last_seq IN (
				SELECT last_seq FROM (SELECT last_seq, created_at FROM relay_log ORDER BY last_seq LIMIT $1) AS first
				WHERE created_at < `+tx.Dialect().Now()+` - $2)`, trimRows, l.r.c.Horizon.Microseconds()))
	})
	if err != nil {
		return 0, fmt.Errorf("trim relay log: %w", err)
	}
	oldest, err := scanRun(l.r.db.Read().QueryRowContext(ctx,
		`SELECT last_seq, event_ids FROM relay_log ORDER BY last_seq LIMIT 1`))
	if errors.Is(err, sql.ErrNoRows) {
		return l.state.lastSeq, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read relay log: %w", err)
	}
	return oldest.first() - 1, nil
}
