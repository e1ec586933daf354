package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// PID is the number of the running process, or 0.
func (p *Process) PID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return 0
	}
	return p.cmd.Process.Pid
}

// WaitFrozen waits until the process stands still, stopped by a signal of its own
// (a failpoint that pauses) or of ours.
func (p *Process) WaitFrozen(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	for {
		if state, err := p.state(); err != nil || state == 'T' {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s was never frozen: %s", p.Name, p.tail())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// state is the kernel's letter for what the process does.
func (p *Process) state() (byte, error) {
	if !p.Alive() {
		return 0, fmt.Errorf("%s has ended: %s", p.Name, p.tail())
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID()))
	if err != nil {
		return 0, fmt.Errorf("state of %s: %w", p.Name, err)
	}
	// The name before it, in parentheses, may hold anything.
	_, rest, ok := bytes.Cut(text[bytes.LastIndexByte(text, ')'):], []byte(" "))
	if !ok || len(rest) == 0 {
		return 0, fmt.Errorf("state of %s: unknown form of /proc/…/stat", p.Name)
	}
	return rest[0], nil
}

// Thaw lets a frozen process go on.
func (p *Process) Thaw() error { return p.Signal(syscall.SIGCONT) }

// LogSince returns what the process has logged after the first from bytes.
func (p *Process) LogSince(from int) string {
	text, err := os.ReadFile(p.Log)
	if err != nil {
		return err.Error()
	}
	return string(text[min(from, len(text)):])
}

// Failing asks all admin ports what is not ready, and returns the reasons by the
// name of the service. A port that does not answer is a reason too.
func (l Line) Failing(ctx context.Context) map[string]string {
	all := map[string]string{}
	for _, admin := range l.Admins {
		failing, err := failingAt(ctx, admin)
		if err != nil {
			all[admin] = err.Error()
		}
		for name, reason := range failing {
			all[name] = strings.TrimSpace(all[name] + " " + reason)
		}
	}
	return all
}

func failingAt(ctx context.Context, admin string) (map[string]string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, admin+"/ready", nil)
	if err != nil {
		return nil, err
	}
	answer, err := reader.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	var body struct {
		Failing map[string]string `json:"failing"`
	}
	if err := json.NewDecoder(answer.Body).Decode(&body); err != nil {
		return nil, fmt.Errorf("GET %s/ready: %w", admin, err)
	}
	if ready := answer.StatusCode == http.StatusOK; ready != (len(body.Failing) == 0) {
		return nil, fmt.Errorf("GET %s/ready: %s, failing %v", admin, answer.Status, body.Failing)
	}
	return body.Failing, nil
}

// CPU is the time that the process has used so far.
func (p *Process) CPU() (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID()))
	if err != nil {
		return 0, fmt.Errorf("CPU time of %s: %w", p.Name, err)
	}
	// After the name, in parentheses: the state is field 3, user and system time 14 and 15, in hundredths of a second.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	var used time.Duration
	for _, n := range []int{14 - 3, 15 - 3} {
		if n >= len(fields) {
			return 0, fmt.Errorf("CPU time of %s: unknown form of /proc/…/stat", p.Name)
		}
		ticks, err := strconv.ParseInt(fields[n], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("CPU time of %s: %w", p.Name, err)
		}
		used += time.Duration(ticks) * 10 * time.Millisecond
	}
	return used, nil
}
