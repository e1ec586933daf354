package brokertest

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"
)

const (
	startTimeout = 20 * time.Second
	poll         = 10 * time.Millisecond
)

// Process is a real nats-server process with JetStream that syncs always, on one port and one
// folder for its whole life, so that clients see a restart as a restart.
type Process struct {
	URL string
	Dir string // JetStream store

	t       testing.TB
	config  string
	pidFile string
	log     string

	mu   sync.Mutex // guards cmd, and lets one start or stop run at a time
	cmd  *exec.Cmd
	done chan struct{} // closed when cmd has exited
}

// StartProcess builds the server of this module's version once per machine and starts it. It is
// stopped at the end of the test.
func StartProcess(t testing.TB) *Process {
	t.Helper()
	folder := t.TempDir()
	port := freePort(t)
	p := &Process{
		t: t, URL: fmt.Sprintf("nats://127.0.0.1:%d", port), Dir: filepath.Join(folder, "store"),
		config: filepath.Join(folder, "nats.conf"), pidFile: filepath.Join(folder, "pid"), log: filepath.Join(folder, "log"),
	}
	config := fmt.Sprintf(`listen: "127.0.0.1:%d"
server_name: "test"
pid_file: %q
log_file: %q
jetstream { store_dir: %q, sync_interval: always, max_file_store: %d, max_memory_store: 67108864 }
`, port, p.pidFile, p.log, p.Dir, int64(maxStore))
	require.NoError(t, os.WriteFile(p.config, []byte(config), 0o600))
	t.Cleanup(func() { p.end(syscall.SIGKILL) })
	p.Start()
	return p
}

// Start starts the server after Kill, Stop or Wipe, and waits until it answers.
func (p *Process) Start() {
	p.t.Helper()
	require.NoError(p.t, p.start())
}

// Kill ends the server as a crash does.
func (p *Process) Kill() { p.end(syscall.SIGKILL) }

// Stop ends the server in good order.
func (p *Process) Stop() { p.end(syscall.SIGTERM) }

// Restart kills the server and starts it again on the same port and folder.
func (p *Process) Restart() {
	p.t.Helper()
	p.Kill()
	p.Start()
}

// Wipe kills the server and removes all that it stored. Start starts an empty one.
func (p *Process) Wipe() {
	p.t.Helper()
	p.Kill()
	require.NoError(p.t, os.RemoveAll(p.Dir))
}

// Freeze stops the server's clock as a suspended machine does; Thaw lets it go on.
func (p *Process) Freeze() { p.signal(syscall.SIGSTOP) }

// Thaw ends Freeze.
func (p *Process) Thaw() { p.signal(syscall.SIGCONT) }

func (p *Process) start() error {
	binary, err := serverBinary()
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	cmd := exec.Command(binary, "-c", p.config)
	dieWithParent(cmd)
	started, done := make(chan error, 1), make(chan struct{})
	go func() {
		runtime.LockOSThread() // the thread must live as long as the server: see dieWithParent
		defer runtime.UnlockOSThread()
		defer close(done)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // killed: the error is expected
		}
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("start nats-server: %w", err)
	}
	p.cmd, p.done = cmd, done
	return p.awaitAnswer()
}

// awaitAnswer waits until the server greets on its port.
func (p *Process) awaitAnswer() error {
	address := strings.TrimPrefix(p.URL, "nats://")
	for deadline := time.Now().Add(startTimeout); time.Now().Before(deadline); {
		if greets(address) {
			return nil
		}
		select {
		case <-p.done:
			out, _ := os.ReadFile(p.log)
			return fmt.Errorf("nats-server ended at start: %s", out)
		case <-time.After(poll):
		}
	}
	return fmt.Errorf("nats-server on %s does not answer", address)
}

func greets(address string) bool {
	c, err := net.DialTimeout("tcp", address, time.Second)
	if err != nil {
		return false
	}
	defer func() { _ = c.Close() }() // only read from
	_ = c.SetReadDeadline(time.Now().Add(time.Second))
	b := make([]byte, 4)
	n, _ := c.Read(b)
	return string(b[:n]) == "INFO"
}

func (p *Process) end(s syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return
	}
	_ = p.cmd.Process.Signal(s) // an error says that it has ended already
	select {
	case <-p.done:
	case <-time.After(startTimeout):
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}

func (p *Process) signal(s syscall.Signal) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	require.NoError(p.t, p.cmd.Process.Signal(s))
}

// serverBinary builds nats-server from the module graph into the user's cache folder; later calls find it there.
func serverBinary() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	folder := filepath.Join(cache, "pillarbox-test")
	path := filepath.Join(folder, "nats-server-"+server.VERSION)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", fmt.Errorf("build nats-server: %w", err)
	}
	// To a name of its own first: other test binaries may be building it too.
	temporary := path + "." + strconv.Itoa(os.Getpid())
	out, err := exec.Command("go", "build", "-o", temporary, "github.com/nats-io/nats-server/v2").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build nats-server: %w: %s", err, out)
	}
	if err := os.Rename(temporary, path); err != nil {
		return "", fmt.Errorf("build nats-server: %w", err)
	}
	return path, nil
}

func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	return l.Addr().(*net.TCPAddr).Port
}
