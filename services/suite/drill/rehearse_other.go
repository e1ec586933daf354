//go:build !linux

package drill

import (
	"context"
	"errors"
)

// rehearse needs inotify, and that a child ends with its parent.
func (c *Command) rehearse(context.Context) (*Report, error) {
	return nil, errors.New("it runs on Linux only")
}
