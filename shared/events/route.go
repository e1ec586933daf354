package events

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// HeaderRoute is the header of a message that is handed on from consumer to consumer: whom it goes to, in turn, the
// receiver first. It only gets shorter, so no event goes round in circles.
const HeaderRoute = "Pillarbox-Route"

// MaxRoute is the most consumers of a route: as many as a store registers.
const MaxRoute = 64

// ErrRoute means that a text is no route.
var ErrRoute = errors.New("no route")

// Route names consumers in the order in which an event goes to them.
type Route []string

// ParseRoute reads "mailer,audit,loyalty". An empty text is an empty route.
func ParseRoute(text string) (Route, error) {
	if text == "" {
		return nil, nil
	}
	if len(text) > MaxRoute*(maxConsumer+1) {
		return nil, fmt.Errorf("%w: it is too long", ErrRoute)
	}
	names := strings.Split(text, ",")
	if len(names) > MaxRoute {
		return nil, fmt.Errorf("%w: more than %d consumers", ErrRoute, MaxRoute)
	}
	for n, name := range names {
		if !validConsumer(name) {
			return nil, fmt.Errorf("%w: %q must be 1 to %d of a-z, 0-9, _ and -, with a letter first", ErrRoute, name, maxConsumer)
		}
		if slices.Contains(names[:n], name) {
			return nil, fmt.Errorf("%w: %s is there twice", ErrRoute, name)
		}
	}
	return names, nil
}

func (r Route) String() string { return strings.Join(r, ",") }

// With returns a route over all of r and then what only other has.
func (r Route) With(other Route) Route {
	out := slices.Clone(r)
	for _, name := range other {
		if !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

// maxConsumer is the longest name of a consumer.
const maxConsumer = 64

func validConsumer(name string) bool {
	if name == "" || len(name) > maxConsumer || name[0] < 'a' || name[0] > 'z' {
		return false
	}
	for _, r := range name {
		if (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '_' && r != '-' {
			return false
		}
	}
	return true
}
