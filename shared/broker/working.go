package broker

import "errors"

var errNotYet = errors.New("not subscribed yet")

// Working reports why subscriptions bring no messages now, or nil: the connection, the stream or the
// durable is missing. Interruptions that are over within a second do not count. A subscriber that
// is paused works.
func (s *Subscriber) Working() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.all) == 0 {
		return errNotYet
	}
	var errs []error
	for b := range s.all {
		if hinders := b.hinders.Load(); hinders != nil {
			errs = append(errs, *hinders)
		}
	}
	return errors.Join(errs...)
}

// begin notes that there is a session. The first one counts as working at once; one after trouble has
// to bring an answer first.
func (s *subscription) begin() {
	if !s.begun {
		s.begun = true
		s.hinders.Store(nil)
	}
}
