package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/reconcile"
)

// inLog finds the sequences under which the rest was published. What is not there was never published, when it is
// young enough to be.
func (s *search) inLog(ctx context.Context) error {
	s.sequences = map[string][]uint64{}
	if len(s.rest) == 0 {
		return nil
	}
	now, err := s.a.db.Now(ctx)
	if err != nil {
		return fmt.Errorf("read clock: %w", err)
	}
	oldest := now
	for _, e := range s.rest {
		if e.At.Before(oldest) {
			oldest = e.At
		}
		s.sequences[e.ID] = nil
	}
	if err := s.readLog(ctx, oldest.Add(-clockSlack), true); err != nil {
		return fmt.Errorf("read relay log: %w", err)
	}
	horizon := now.Add(-s.a.c.Horizon + horizonSlack)
	s.keep(func(e reconcile.Event) (reconcile.Place, bool) {
		switch {
		case len(s.sequences[e.ID]) > 0:
			return "", false
		case e.At.Before(horizon):
			return reconcile.Old, true
		}
		return reconcile.Unpublished, true
	})
	return nil
}

// readLog reads the log from a time on. first is satisfied with one place of each event, which comes soon after the event; an
// event that was refilled has later ones.
func (s *search) readLog(ctx context.Context, since time.Time, first bool) error {
	above, err := s.logBefore(ctx, since)
	if err != nil {
		return err
	}
	for missing, more := len(s.sequences), true; more && (missing > 0 || !first); {
		rows, err := s.a.db.Read().QueryContext(ctx, `SELECT last_seq, event_ids FROM relay_log
			WHERE last_seq > $1 ORDER BY last_seq LIMIT $2`, above, logPage)
		if err != nil {
			return err
		}
		n := 0
		for rows.Next() {
			r, err := scanRun(rows)
			if err != nil {
				return errors.Join(err, rows.Close())
			}
			n, above = n+1, int64(r.last)
			for k, id := range r.ids {
				had, wanted := s.sequences[id]
				if wanted && len(had) == 0 {
					missing--
				}
				if wanted {
					s.sequences[id] = append(had, r.first()+uint64(k))
				}
			}
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil {
			return err
		}
		more = n == logPage
	}
	return nil
}

// logBefore returns a sequence below all of the log that was written since. It grows in the order of time.
func (s *search) logBefore(ctx context.Context, since time.Time) (low int64, err error) {
	var high int64
	q := s.a.db.Read()
	err = q.QueryRowContext(ctx, `SELECT coalesce(min(last_seq), 1) - 1, coalesce(max(last_seq), 0) FROM relay_log`).Scan(&low, &high)
	for err == nil && high-low > logPage {
		middle := low + (high-low)/2
		var last, at int64
		err = q.QueryRowContext(ctx, `SELECT last_seq, created_at FROM relay_log WHERE last_seq >= $1 ORDER BY last_seq LIMIT 1`, middle).
			Scan(&last, &at)
		if at < database.Micros(since) {
			low = last
		} else {
			high = middle
		}
	}
	return low, err
}
