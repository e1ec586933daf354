package inprocess

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// ErrInUse means that another suite runs on the folder.
var ErrInUse = errors.New("folder is in use")

// lockName is the file whose lock says whose folder it is; it stays for ever.
const lockName = "suite.lock"

// lockFolder takes the folder for this process. The kernel gives the lock back
// when the process ends, however it ends; the file stays.
func lockFolder(dir string) (release func() error, err error) {
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_RDWR|os.O_CREATE, 0o600)
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
	return f.Close, nil
}

func writeAt(f *os.File, text string) error {
	_, err := f.WriteAt([]byte(text), 0)
	return err
}
