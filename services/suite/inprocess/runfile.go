package inprocess

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// RunFile is data/run.json: how operator commands reach a running suite. It is
// only true while the folder's lock is held.
type RunFile struct {
	PID       int       `json:"pid"`
	StartedAt time.Time `json:"started_at"`
	HTTP      string    `json:"http"`
	Admin     string    `json:"admin"`
	NATSURL   string    `json:"nats_url"`
	NATSToken string    `json:"nats_token"`
}

// write replaces the file in one step, readable for its owner only.
func (r RunFile) write(dir string) error {
	body, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("write run.json: %w", err)
	}
	temporary := filepath.Join(dir, ".run.json")
	if err := os.WriteFile(temporary, append(body, '\n'), 0o600); err != nil {
		return fmt.Errorf("write run.json: %w", err)
	}
	if err := os.Rename(temporary, filepath.Join(dir, "run.json")); err != nil {
		return fmt.Errorf("write run.json: %w", err)
	}
	return nil
}

func removeRunFile(dir string) error {
	if err := os.Remove(filepath.Join(dir, "run.json")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove run.json: %w", err)
	}
	return nil
}
