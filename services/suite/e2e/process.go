package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Process is a program that scenarios start, stop, kill and freeze. Its output
// goes to a log file, so that a failure can be read afterwards.
type Process struct {
	Name string
	Path string
	Args []string
	Env  []string // added to a bare environment
	Log  string   // path of the log file
	// Ready is polled after a start until it returns nil.
	Ready func(ctx context.Context) error

	mu   sync.Mutex // guards cmd and done
	cmd  *exec.Cmd
	done chan struct{} // closed when cmd has ended
}

// startLimit bounds the wait for a process to be ready.
const startLimit = 60 * time.Second

// Start starts the process; it does not wait until it is ready.
func (p *Process) Start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd != nil {
		return fmt.Errorf("%s runs already", p.Name)
	}
	log, err := os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(p.Path, p.Args...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.TempDir()}, p.Env...)
	cmd.Stdout, cmd.Stderr = log, log
	// A test that dies takes its processes with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	done := make(chan struct{})
	p.cmd, p.done = cmd, done
	go func() {
		defer close(done)
		_ = cmd.Wait() // how it ended is read from ProcessState
	}()
	return nil
}

// WaitReady polls Ready until it holds; it fails at once when the process has
// ended.
func (p *Process) WaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	p.mu.Lock()
	done := p.done
	p.mu.Unlock()
	for {
		err := p.Ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-done:
			return fmt.Errorf("%s ended before it was ready: %s", p.Name, p.tail())
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w: %s", p.Name, err, p.tail())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// Run starts the process and waits until it is ready.
func (p *Process) Run(ctx context.Context) error {
	if err := p.Start(); err != nil {
		return err
	}
	return p.WaitReady(ctx)
}

// Signal sends a signal to the running process.
func (p *Process) Signal(s syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return fmt.Errorf("%s does not run", p.Name)
	}
	return p.cmd.Process.Signal(s)
}

// Alive reports whether the process runs (or is frozen).
func (p *Process) Alive() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return false
	}
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Ended is closed when the process has ended.
func (p *Process) Ended() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.done
}

// Kill ends the process with SIGKILL and waits.
func (p *Process) Kill() error { return p.end(syscall.SIGKILL, startLimit) }

// Stop ends the process with SIGTERM; an exit status other than 0 is an error.
func (p *Process) Stop() error {
	if err := p.end(syscall.SIGTERM, 30*time.Second); err != nil {
		return err
	}
	return nil
}

func (p *Process) end(s syscall.Signal, limit time.Duration) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return nil
	}
	// One that has ended by itself cannot take a signal; its status tells.
	_ = p.cmd.Process.Signal(s)
	select {
	case <-p.done:
	case <-time.After(limit):
		_ = p.cmd.Process.Kill()
		<-p.done
		p.cmd = nil
		return fmt.Errorf("%s did not end within %s of %s", p.Name, limit, s)
	}
	state := p.cmd.ProcessState
	p.cmd = nil
	if s != syscall.SIGKILL && !state.Success() {
		return fmt.Errorf("%s: %s: %s", p.Name, state, p.tail())
	}
	return nil
}

// tail is the end of the log.
func (p *Process) tail() string {
	text, err := os.ReadFile(p.Log)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(text[max(0, len(text)-2000):]))
}

// FreePort returns a loopback port that nothing listens on and that no other test
// gets, below the range that the kernel gives to outgoing connections: a service
// that restarts must find its port free.
func FreePort() (int, error) {
	for range 1000 {
		port := 15000 + rand.IntN(17000)
		if err := reserve(port); err != nil {
			continue
		}
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		return port, listener.Close()
	}
	return 0, errors.New("no free port")
}

// reserve keeps a port from other callers on this machine until this process ends,
// by a socket of that name that is never closed and leaves no file behind. Seconds may
// pass before the service listens, and dozens of ports are drawn meanwhile.
func reserve(port int) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: fmt.Sprintf("@pillarbox-e2e-port-%d", port)}); err != nil {
		return errors.Join(err, unix.Close(fd))
	}
	return nil
}

// ReadyAt asks a service's admin port.
func ReadyAt(admin string) func(context.Context) error {
	return func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, admin+"/ready", nil)
		if err != nil {
			return err
		}
		answer, err := reader.Do(request)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			return errors.New(answer.Status)
		}
		return nil
	}
}

// Dialable reports whether a loopback port takes connections.
func Dialable(port int) func(context.Context) error {
	return func(ctx context.Context) error {
		var d net.Dialer
		conn, err := d.DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			return err
		}
		return conn.Close()
	}
}
