// Package postgres runs a real PostgreSQL server of one's own, for tests that
// stop, crash or kill it, and for tooling on machines where none is running.
//
// The server listens on a loopback port only and trusts whoever connects: it is
// for scratch data. A crash of the process that started it leaves the server
// running; it ends by itself within a minute once its folder is removed.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/pillarbox/pillarbox/shared/database"
)

const (
	defaultMaxConnections = 300
	startPatience         = 60 * time.Second
	stopPatience          = 30 * time.Second
	superuser             = "postgres"
)

// Mode is how a server is stopped.
type Mode int

const (
	// Fast ends all sessions, writes a checkpoint and stops.
	Fast Mode = iota
	// Immediate stops like a crash: the next start recovers from the log.
	Immediate
)

// Config of a Server. The zero value works.
type Config struct {
	// Dir is where the cluster lives. When empty it is a new temporary folder,
	// removed by Close.
	Dir string
	// Durable keeps fsync on. Without it a power loss destroys the cluster, and
	// tests run faster.
	Durable bool
	// MaxConnections: default 300.
	MaxConnections int
	// Settings are further server settings by name.
	Settings map[string]string
}

// Server is one PostgreSQL server. Its methods may be called from several goroutines.
type Server struct {
	c       Config
	bin     string // folder of the server's programs
	scratch bool   // Dir is ours to remove
	port    int
	log     string

	mu      sync.Mutex // guards process
	process *process   // nil while stopped
}

// process is one run of the server program.
type process struct {
	*os.Process
	ended chan struct{} // closed when it has been waited for
}

// Start makes a new cluster and starts its server. The error wraps ErrNotFound
// when this machine has no PostgreSQL.
func Start(ctx context.Context, c Config) (*Server, error) {
	bin, err := Find()
	if err != nil {
		return nil, err
	}
	if c.MaxConnections == 0 {
		c.MaxConnections = defaultMaxConnections
	}
	s := &Server{c: c, bin: bin}
	if c.Dir == "" {
		if s.c.Dir, err = os.MkdirTemp("", "pillarbox-postgres-"); err != nil {
			return nil, fmt.Errorf("make cluster folder: %w", err)
		}
		s.scratch = true
	}
	s.log = filepath.Join(s.c.Dir, "server.log")
	if err := s.create(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if s.port, err = freePort(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if err := s.Start(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// create runs initdb. The server refuses to run as root, so then the folder is
// given to another user.
func (s *Server) create(ctx context.Context) error {
	if err := os.MkdirAll(s.c.Dir, 0o700); err != nil {
		return fmt.Errorf("make cluster folder: %w", err)
	}
	if err := giveAway(s.c.Dir); err != nil {
		return err
	}
	initdb := exec.CommandContext(ctx, filepath.Join(s.bin, "initdb"), "--pgdata", s.data(), "--username", superuser,
		"--auth", "trust", "--encoding", "UTF8", "--no-locale", "--no-sync", "--no-instructions")
	if err := s.prepare(initdb); err != nil {
		return err
	}
	if out, err := initdb.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, out)
	}
	return nil
}

func (s *Server) data() string { return filepath.Join(s.c.Dir, "data") }

// prepare makes cmd run as the right user, apart from our terminal's signals.
func (s *Server) prepare(cmd *exec.Cmd) error {
	cmd.Dir = s.c.Dir // initdb and postgres want to be able to return to where they began
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	return runApart(cmd)
}

// URL is the address of the database "postgres" for the superuser.
func (s *Server) URL() string {
	return fmt.Sprintf("postgres://%s@127.0.0.1:%d/postgres?sslmode=disable", superuser, s.port)
}

// Start starts a stopped server on the same port and waits until it answers.
func (s *Server) Start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process != nil {
		return errors.New("start postgres: already running")
	}
	for {
		p, err := s.spawn()
		if err != nil {
			return fmt.Errorf("start postgres: %w", err)
		}
		err = s.await(ctx, p)
		if err == nil {
			s.process = p
			return nil
		}
		_ = p.Kill() // it may have ended already
		<-p.ended
		// After a kill the sessions of the former server need a moment to notice it.
		if ctx.Err() != nil || !errors.Is(err, errEnded) {
			return fmt.Errorf("start postgres: %w\n%s", err, s.tail())
		}
		if err := pause(ctx, 200*time.Millisecond); err != nil {
			return fmt.Errorf("start postgres: %w\n%s", err, s.tail())
		}
	}
}

func (s *Server) spawn() (*process, error) {
	settings := map[string]string{
		"listen_addresses":        "127.0.0.1",
		"port":                    strconv.Itoa(s.port),
		"unix_socket_directories": "", // the folder's path may be too long for one
		"max_connections":         strconv.Itoa(s.c.MaxConnections),
		"shared_buffers":          "64MB",
	}
	if !s.c.Durable {
		settings["fsync"], settings["full_page_writes"] = "off", "off"
	}
	for name, value := range s.c.Settings {
		settings[name] = value
	}
	cmd := exec.Command(filepath.Join(s.bin, "postgres"), "-D", s.data())
	for name, value := range settings {
		cmd.Args = append(cmd.Args, "-c", name+"="+value)
	}
	if err := s.prepare(cmd); err != nil {
		return nil, err
	}
	log, err := os.OpenFile(s.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = log, log
	err = errors.Join(cmd.Start(), log.Close())
	if err != nil {
		return nil, err
	}
	p := &process{Process: cmd.Process, ended: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // how it ended stands in its log
		close(p.ended)
	}()
	return p, nil
}

var errEnded = errors.New("the server ended")

// await returns when the server answers.
func (s *Server) await(ctx context.Context, p *process) error {
	for {
		if err := Answers(ctx, s.URL()); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-p.ended:
			return errEnded
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Answers reports whether the server at url takes a connection and answers a query.
func Answers(ctx context.Context, url string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	db, err := database.Open(url, database.Options{MaxConns: 1})
	if err != nil {
		return err
	}
	return errors.Join(db.Ping(ctx), db.Close())
}

// Stop stops the server and waits for its end. A stopped server is no error.
func (s *Server) Stop(mode Mode) error {
	if mode == Immediate {
		return s.end(syscall.SIGQUIT)
	}
	return s.end(syscall.SIGINT)
}

// Kill ends the server with SIGKILL, as the kernel does when memory runs out.
func (s *Server) Kill() error { return s.end(syscall.SIGKILL) }

// Restart stops and starts the server.
func (s *Server) Restart(ctx context.Context, mode Mode) error {
	if err := s.Stop(mode); err != nil {
		return err
	}
	return s.Start(ctx)
}

// Close stops the server and removes the cluster if its folder is temporary.
func (s *Server) Close() error {
	err := s.Stop(Immediate)
	if s.scratch {
		err = errors.Join(err, os.RemoveAll(s.c.Dir))
	}
	return err
}

func (s *Server) end(signal syscall.Signal) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil {
		return nil
	}
	if err := s.process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stop postgres: %w", err)
	}
	select {
	case <-s.process.ended:
	case <-time.After(stopPatience):
		return errors.Join(errors.New("stop postgres: it does not end, killing it"), s.process.Kill())
	}
	s.process = nil
	return nil
}

// tail is the end of the server's log, for error messages.
func (s *Server) tail() string {
	text, err := os.ReadFile(s.log)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-2000):])
}

// freePort draws from below the range that the kernel gives to outgoing connections: the
// server must find its port free when it starts again.
func freePort(ctx context.Context) (int, error) {
	var l net.ListenConfig
	for range 100 {
		port := 10_000 + rand.IntN(5_000)
		listener, err := l.Listen(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		return port, listener.Close()
	}
	return 0, errors.New("find a free port: none in 100 tries")
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
