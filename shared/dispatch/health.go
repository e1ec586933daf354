package dispatch

import "time"

// health says whether a worker gets messages. Its roster's lock guards it.
type health struct {
	coolUntil time.Time
	late      bool // it has not returned from a message whose time is up
	left      bool
	// away is closed when the worker becomes unavailable, for those who wait for it; then another one is made.
	away   chan struct{}
	closed bool
}

func newHealth() health { return health{away: make(chan struct{})} }

func (h *health) available(now time.Time) bool {
	return !h.left && !h.late && !now.Before(h.coolUntil)
}

// admit returns what is closed when the worker becomes unavailable, or false when it is.
func (h *health) admit(now time.Time) (<-chan struct{}, bool) {
	if !h.available(now) {
		return nil, false
	}
	if h.closed {
		h.away, h.closed = make(chan struct{}), false
	}
	return h.away, true
}

func (h *health) sendAway() {
	if !h.closed {
		close(h.away)
		h.closed = true
	}
}

func (h *health) leave() {
	h.left = true
	h.sendAway()
}

func (h *health) overdue() {
	h.late = true
	h.sendAway()
}

func (h *health) coolDown(until time.Time) {
	h.late, h.coolUntil = false, until
	h.sendAway()
}
