package e2e

import (
	"fmt"
	"os"
	"path/filepath"
)

// SuiteProcess is the one-process shape as a process of its own, so that it can
// be killed.
type SuiteProcess struct {
	*Process
	Dir  string
	line Line
}

// NewSuiteProcess describes a suite on dir; it starts nothing.
func NewSuiteProcess(b Binaries, dir string, env ...string) (*SuiteProcess, error) {
	api, err := FreePort()
	if err != nil {
		return nil, err
	}
	admin, err := FreePort()
	if err != nil {
		return nil, err
	}
	data := filepath.Join(dir, "data")
	if err := os.MkdirAll(filepath.Join(data, "pickup"), 0o755); err != nil {
		return nil, err
	}
	base, adminURL := fmt.Sprintf("http://127.0.0.1:%d", api), fmt.Sprintf("http://127.0.0.1:%d", admin)
	return &SuiteProcess{
		Dir: data,
		Process: &Process{
			Name: "suite", Path: b.path("suite"), Log: filepath.Join(dir, "suite.log"), Ready: ReadyAt(adminURL),
			Args: []string{"run", "--data", data, "--http", fmt.Sprintf("127.0.0.1:%d", api), "--admin", fmt.Sprintf("127.0.0.1:%d", admin)},
			Env:  append([]string{"PILLARBOX_LOG_LEVEL=debug"}, env...),
		},
		line: Line{Stores: []string{base}, Audit: base, Loyalty: base, Admins: []string{adminURL}, Pickup: filepath.Join(data, "pickup")},
	}, nil
}

// Line is what scenarios need.
func (s *SuiteProcess) Line() Line { return s.line }
