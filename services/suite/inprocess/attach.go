package inprocess

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/broker/embedded"
)

const (
	brokerDir = "nats" // of the embedded broker's store, in the data folder

	attachTimeout = 10 * time.Second // for a suite that is starting or stopping
	attachPoll    = 20 * time.Millisecond
	othersTimeout = time.Second
	// dialTimeout bounds one attempt at the address in run.json: after a crash it may be an old one.
	dialTimeout = 2 * time.Second
)

// Attached is the broker of a folder as an operator's command uses it.
type Attached struct {
	Conn *broker.Conn
	// Alone: no suite runs. This process holds the folder and serves its broker until Close;
	// other commands reach it as they would reach a suite, and attach anew when it is gone.
	Alone bool
	// Suite: a suite runs there. (Neither: it is another command that has the folder open.)
	Suite  bool
	Admin  string // the suite's admin address
	opened parts
}

// Attach connects to the broker of the suite that runs on dir, or opens the folder itself when none does. Close it.
func Attach(ctx context.Context, dir string, log *slog.Logger) (*Attached, error) {
	ctx, cancel := context.WithTimeout(ctx, attachTimeout)
	defer cancel()
	if err := isOurs(dir); err != nil {
		return nil, err
	}
	for {
		a, err := attachOnce(ctx, dir, log)
		if !errors.Is(err, ErrInUse) {
			return a, err
		}
		select {
		case <-ctx.Done():
			if errors.Is(context.Cause(ctx), context.Canceled) {
				return nil, context.Cause(ctx)
			}
			return nil, fmt.Errorf("%s is in use, but its suite cannot be reached: %w", dir, err)
		case <-time.After(attachPoll):
		}
	}
}

// isOurs refuses a folder that holds something else: a mistyped path must not
// leave a broker's files there.
func isOurs(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("there is no folder %s", dir)
	}
	if err != nil {
		return fmt.Errorf("data folder: %w", err)
	}
	ours := func(e fs.DirEntry) bool { return e.Name() == lockName || e.Name() == brokerDir }
	if len(entries) > 0 && !slices.ContainsFunc(entries, ours) {
		return fmt.Errorf("%s is not a folder of Pillarbox: no suite has run there", dir)
	}
	return nil
}

func attachOnce(ctx context.Context, dir string, log *slog.Logger) (_ *Attached, err error) {
	folder, err := lockFolder(dir)
	if errors.Is(err, ErrInUse) {
		return attachRunning(ctx, dir, log)
	}
	if err != nil {
		return nil, err
	}
	a := &Attached{Alone: true}
	a.opened.add(folder.release)
	defer func() {
		if err != nil {
			err = errors.Join(err, a.opened.close())
		}
	}()
	run := RunFile{PID: os.Getpid(), StartedAt: time.Now().UTC(), NATSToken: rand.Text()}
	server, err := embedded.Start(ctx, embedded.Config{Dir: filepath.Join(dir, brokerDir), Token: run.NATSToken}, log)
	if err != nil {
		return nil, fmt.Errorf("open the folder's broker: %w", err)
	}
	a.opened.add(func() error { stopAfterOthers(server); return nil })
	if err := a.connect(ctx, broker.Config{Server: server, Token: run.NATSToken}, log); err != nil {
		return nil, err
	}
	run.NATSURL = server.ClientURL()
	if err := run.write(dir); err != nil {
		return nil, err
	}
	a.opened.add(func() error { return removeRunFile(dir) })
	return a, nil
}

// stopAfterOthers stops the server once commands of other processes that use it have had the time to end.
func stopAfterOthers(server *embedded.Server) {
	for deadline := time.Now().Add(othersTimeout); server.NumClients() > 0 && time.Now().Before(deadline); {
		time.Sleep(attachPoll)
	}
	server.Stop()
}

// attachRunning connects to the process that holds the folder. Whatever is not as it should be
// is ErrInUse: that process may be about to write its address, or to end.
func attachRunning(ctx context.Context, dir string, log *slog.Logger) (*Attached, error) {
	holder, err := os.ReadFile(filepath.Join(dir, lockName))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInUse, err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "run.json"))
	if errors.Is(err, fs.ErrPermission) {
		return nil, fmt.Errorf("read the address of the running suite: %w", err)
	}
	var run RunFile
	if err == nil {
		err = json.Unmarshal(text, &run)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInUse, err)
	}
	if strconv.Itoa(run.PID) != strings.TrimSpace(string(holder)) {
		return nil, fmt.Errorf("%w: run.json is that of process %d", ErrInUse, run.PID)
	}
	a := &Attached{Suite: run.HTTP != "", Admin: run.Admin}
	if err := a.connect(ctx, broker.Config{URL: run.NATSURL, Token: run.NATSToken}, log); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInUse, err)
	}
	return a, nil
}

func (a *Attached) connect(ctx context.Context, c broker.Config, log *slog.Logger) error {
	c.Name = "pillarbox-operator"
	conn, err := broker.Connect(c, log)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	if err := conn.AwaitReady(ctx); err != nil {
		conn.Close()
		return err
	}
	a.Conn = conn
	a.opened.add(func() error { conn.Close(); return nil })
	return nil
}

// Close leaves the broker, and stops it when nobody else served it.
func (a *Attached) Close() error { return a.opened.close() }
