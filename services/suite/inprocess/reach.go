package inprocess

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Reached is a folder as a command uses it that needs the services' tables and no broker.
type Reached struct {
	// Admin is the admin address of the suite that runs there; empty when none does, and this process holds the
	// folder until Close.
	Admin   string
	release func() error
}

// Close gives the folder back.
func (r *Reached) Close() error {
	if r.release == nil {
		return nil
	}
	return r.release()
}

// Reach finds the suite that runs on dir, or takes the folder for this process when none does. It waits a moment
// for one that starts or stops, and for another command. Close it.
func Reach(ctx context.Context, dir string) (*Reached, error) {
	ctx, cancel := context.WithTimeout(ctx, attachTimeout)
	defer cancel()
	if err := isOurs(dir); err != nil {
		return nil, err
	}
	for {
		folder, err := lockFolder(dir)
		if err == nil {
			return &Reached{release: folder.release}, nil
		}
		if !errors.Is(err, ErrInUse) {
			return nil, err
		}
		if run, found := runningOn(dir); found && run.Admin != "" {
			return &Reached{Admin: run.Admin}, nil
		}
		select {
		case <-ctx.Done():
			if errors.Is(context.Cause(ctx), context.Canceled) {
				return nil, context.Cause(ctx)
			}
			return nil, fmt.Errorf("%s is in use by a suite that cannot be reached, or by another command: %w", dir, err)
		case <-time.After(attachPoll):
		}
	}
}

// runningOn reads the address of the process that holds the folder; not found when it is another's, or half written.
func runningOn(dir string) (run RunFile, found bool) {
	holder, err := os.ReadFile(filepath.Join(dir, lockName))
	if err != nil {
		return run, false
	}
	text, err := os.ReadFile(filepath.Join(dir, "run.json"))
	if err != nil || json.Unmarshal(text, &run) != nil {
		return run, false
	}
	return run, strconv.Itoa(run.PID) == strings.TrimSpace(string(holder))
}
