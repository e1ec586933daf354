package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/lease"
	"github.com/pillarbox/pillarbox/shared/logs"
)

const (
	// A page of a replay is what live events may have to wait for: some 15 ms.
	replayRows  = 250
	replayBytes = 1 << 20
	// replayLook is how often the leader looks for replays when there is nothing that it can do for one.
	replayLook = 500 * time.Millisecond
	// replayShare is after how long a replay gets a page although live events never cease.
	replayShare = time.Second
	// replayPrefix, the subscriber's name and the replay's number come before the event id in publish ids.
	replayPrefix = "replay-"
)

// A replay publishes the events that a subscriber asked for, in the order of events.seq, to a topic of its own:
// behind live events, one page at a time, each of the replays in turn, and only while the stream is less than half
// full. A page that a crash left in doubt is published again under the same ids.

// job is one replay.
type job struct {
	name           string
	number         int64
	state          string
	doneUpTo, upTo int64  // events.seq
	lastSeq        uint64 // of the stream
}

// replays is what the leader knows of them. All of it may be forgotten.
type replays struct {
	idle    time.Time       // when there was last nothing to do
	served  time.Time       // when a page was last published
	last    string          // whose
	careful map[string]bool // singles until a receipt is no duplicate: an earlier outcome is in doubt
	waiting bool            // for room in the stream
}

// due: live events never cease, and replays have had nothing for a while, perhaps since there was none.
func (r *replays) due() bool { return time.Since(r.served) >= replayShare && !r.resting() }

func (r *replays) resting() bool { return time.Since(r.idle) < replayLook }

// replay publishes the next page of the next replay; more means that there may be another one.
func (l *leader) replay(ctx context.Context) (more bool, err error) {
	// Looked for even when there were none: another replica may have taken a request.
	if l.state.refilling() || l.replays.resting() {
		return false, nil
	}
	jobs, err := l.jobs(ctx)
	if err != nil {
		return false, err
	}
	l.r.metrics.replays.Set(float64(len(jobs)))
	if err := l.confirmHandled(ctx, jobs); err != nil || l.state.refilling() {
		return false, err
	}
	l.replays.waiting = false
	next, ok := nextJob(jobs, l.replays.last)
	if ok {
		ok, err = l.room(ctx)
	}
	if err != nil || !ok {
		l.replays.idle = time.Now()
		return false, err
	}
	l.replays.last, l.replays.served = next.name, time.Now()
	finish, cancel := outlive(ctx, finishWithin)
	defer cancel()
	return true, l.replayPage(ctx, finish, next)
}

// jobs reads the replays that are not over.
func (l *leader) jobs(ctx context.Context) (jobs []job, err error) {
	rows, err := l.r.db.Read().QueryContext(ctx, `SELECT name, number, state, done_up_to, up_to, last_seq FROM replays
		WHERE state <> 'handled' ORDER BY name`)
	if err != nil {
		return nil, fmt.Errorf("read replays: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var j job
		if err := rows.Scan(&j.name, &j.number, &j.state, &j.doneUpTo, &j.upTo, &j.lastSeq); err != nil {
			return nil, fmt.Errorf("read replays: %w", err)
		}
		jobs = append(jobs, j)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read replays: %w", err)
	}
	return jobs, nil
}

// nextJob is the running one after the one that was last served.
func nextJob(jobs []job, last string) (next job, ok bool) {
	for _, j := range jobs {
		if j.state != replayRunning {
			continue
		}
		if j.name > last {
			return j, true
		}
		if !ok {
			next, ok = j, true
		}
	}
	return next, ok
}

// confirmHandled ends the replays that their subscribers have acknowledged, once the stream turns out to be whole:
// an acknowledgement made on a stream that has lost something since it was published is worth nothing, and
// the refill starts such a replay over.
func (l *leader) confirmHandled(ctx context.Context, jobs []job) error {
	jobs = slices.DeleteFunc(slices.Clone(jobs), func(j job) bool { return j.state != replayAcknowledged })
	if len(jobs) == 0 {
		return nil
	}
	if err := l.compare(ctx); err != nil || l.state.refilling() {
		return err
	}
	l.r.step("replay.acknowledged")
	err := l.r.db.Tx(ctx, func(ctx context.Context, tx *database.Tx) error {
		if err := lease.Check(ctx, tx, leaseName, l.term); err != nil {
			return err
		}
		for _, j := range jobs {
			if _, err := tx.ExecContext(ctx, `UPDATE replays SET state = 'handled'
				WHERE name = $1 AND number = $2 AND state = 'acknowledged'`, j.name, j.number); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("end replays: %w", err)
	}
	l.r.step("replay.handled")
	for _, j := range jobs {
		l.log.InfoContext(ctx, "replay done", logs.Consumer, j.name, keyReplay, j.number)
	}
	return nil
}

// room reports whether the stream may take a page: the other half of it is for live events. While it may not, the
// purge runs more often and takes more.
func (l *leader) room(ctx context.Context) (bool, error) {
	stream, err := l.r.conn.Stream(ctx, l.r.c.Stream)
	if err != nil {
		return false, err
	}
	l.replays.waiting = stream.Bytes > uint64(l.share())/2
	if l.replays.waiting {
		l.hurryPurge()
	}
	return !l.replays.waiting, nil
}

// hurryPurge makes the purge come at the next pass, though not all the time.
func (l *leader) hurryPurge() {
	if time.Since(l.purged) >= compareEvery {
		l.purged = time.Time{}
	}
}

// keyReplay is the number of a replay in log lines.
const keyReplay = "replay"
