package inprocess

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// ErrInUse means that another suite runs on the folder.
var ErrInUse = errors.New("folder is in use")

// ErrGone means that the folder under a running suite is another one now, or none.
var ErrGone = errors.New("the folder was removed, moved or replaced under the suite, and what was accepted since is not there")

// lockName is the file whose lock says whose folder it is; it stays for ever.
const lockName = "suite.lock"

// lookEvery is between two looks whether the folder is still the one that was locked.
const lookEvery = time.Second

// lock is a folder that belongs to this process.
type lock struct {
	file *os.File
	path string
}

// lockFolder takes the folder for this process. The kernel gives the lock back
// when the process ends, however it ends; the file stays.
func lockFolder(dir string) (*lock, error) {
	path := filepath.Join(dir, lockName)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock folder: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		defer f.Close()
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock folder: %w", err)
		}
		// The number is for the message only; a read error leaves it out.
		pid, _ := io.ReadAll(io.LimitReader(f, 20))
		return nil, fmt.Errorf("%w: another suite (process %s) runs on %s; stop it, or choose another folder with --data", ErrInUse, pid, dir)
	}
	if err := errors.Join(f.Truncate(0), writeAt(f, strconv.Itoa(os.Getpid()))); err != nil {
		return nil, errors.Join(fmt.Errorf("lock folder: %w", err), f.Close())
	}
	return &lock{f, path}, nil
}

// release gives the folder back.
func (l *lock) release() error { return l.file.Close() }

// watch ends with ErrGone: a process that holds files without a name would go on to accept what nobody finds again.
func (l *lock) watch(ctx context.Context) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for l.held() {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
	return fmt.Errorf("%s: %w", filepath.Dir(l.path), ErrGone)
}

// held reports whether the folder is still the one that was locked, as far as can be seen.
func (l *lock) held() bool {
	locked, err := l.file.Stat()
	there, lookErr := os.Lstat(l.path)
	if errors.Is(lookErr, fs.ErrNotExist) {
		return false
	}
	return err != nil || lookErr != nil || os.SameFile(locked, there)
}

func writeAt(f *os.File, text string) error {
	_, err := f.WriteAt([]byte(text), 0)
	return err
}
