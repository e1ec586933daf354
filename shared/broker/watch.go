package broker

import (
	"context"
	"errors"
	"time"

	"github.com/pillarbox/pillarbox/shared/logs"
)

// keepAlive extends the deadlines of what is in flight, all with one ticker, at a third of AckWait.
func (s *subscription) keepAlive(done <-chan struct{}) {
	third := s.parent.config.AckWait / 3
	ticker := time.NewTicker(third)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			s.flights.extend(third)
		case <-done:
			return
		}
	}
}

// watch looks each second whether the stream is still the one that is read. A stream that was
// made anew shows itself at the next pull; a risen generation shows only here.
func (s *subscription) watch(done <-chan struct{}) {
	ticker := time.NewTicker(watchInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			if s.hasMoved() {
				select {
				case s.moved <- struct{}{}:
				default:
				}
			}
		case <-done:
			return
		}
	}
}

// hasMoved compares the stream with the session's.
func (s *subscription) hasMoved() bool {
	s.mu.Lock()
	was := s.watched
	s.mu.Unlock()
	if was.name == "" || !s.parent.conn.NATS.IsConnected() {
		return false
	}
	ctx, cancel := context.WithTimeout(s.stop, buildTimeout)
	defer cancel()
	st, err := s.parent.conn.Stream(ctx, was.stream)
	if err != nil {
		return errors.Is(err, ErrNoStream) // anything else is the pulls' to find out
	}
	return st.Generation != was.generation || !st.Created.Equal(was.streamMade)
}

// watchFor tells the watcher what to compare with, and forgets what it saw before.
func (s *subscription) watchFor(d durable) {
	s.mu.Lock()
	s.watched = d
	s.mu.Unlock()
	select {
	case <-s.moved:
	default:
	}
}

// works notes that the session does its work.
func (s *subscription) works(ses *session) {
	if !ses.answered || s.trouble.IsZero() {
		return
	}
	if !s.said.IsZero() {
		s.parent.conn.log.InfoContext(s.work, "subscription works again", logs.Consumer, ses.name,
			logs.Duration, time.Since(s.trouble))
	}
	s.trouble, s.said = time.Time{}, time.Time{}
	s.hinders.Store(nil)
	s.backoff.Reset()
}

// complain logs what is wrong: not the first moments, and then a line every few seconds.
func (s *subscription) complain(err error) {
	now := time.Now()
	if s.trouble.IsZero() {
		s.trouble = now
	}
	if !s.begun || now.Sub(s.trouble) >= quiet {
		s.hinders.Store(&err)
	}
	if now.Sub(s.trouble) < quiet || now.Sub(s.said) < complainEvery {
		return
	}
	s.said = now
	s.parent.conn.log.WarnContext(s.work, "subscription is waiting", logs.Consumer, s.group, topicKey, s.topic, logs.Reason, err)
}

// rest waits before the next attempt.
func (s *subscription) rest() {
	timer := time.NewTimer(s.backoff.NextBackOff())
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.pull.Done():
	}
}
